"""The paper's tables and figures, each from one command: `qkgcc reproduce table1|table2|table3|fig1|fig2|fig3`."""
