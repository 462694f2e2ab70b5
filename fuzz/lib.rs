//! The pure rules of the extension, and how PostgreSQL reads what they write.

#[allow(dead_code)]
#[path = "../src/rules/mod.rs"]
pub mod rules;

pub mod lexer;
