//! Who may run the machine, and when what it says may be heard.
