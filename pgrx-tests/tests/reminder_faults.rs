//! Reminders when things go wrong: each is given once, whatever ends in the middle of it.
