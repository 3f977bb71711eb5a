//! Stick tables: what is counted, looked up and shown, against Debian's haproxy with the same configuration.

mod commands;
mod counters;
mod fixture;
mod persistence;
mod tables;
