//! Sans-I/O codecs: bytes in, events and bytes out.
//!
//! HTTP/1 messages ([`http`]), HTTP/2 connections ([`http2`]), PROXY headers ([`proxy_protocol`]) and those of NetScaler
//! ([`netscaler`]), the client of SOCKS 4 ([`socks4`]), the exchange of stick tables ([`peers`]), RESP2 and RESP3
//! ([`resp`], [`reply`]), slots of keys ([`slot`]), frames of agents ([`spop`]), records of FastCGI
//! ([`fcgi`]), and the interface between the proxy and a store ([`engine`]). Nothing here opens a socket, reads a clock or blocks, so every codec can be fuzzed as a plain function and tested byte by byte.

#![forbid(unsafe_code)]

pub mod engine;
pub mod fcgi;
pub mod http;
pub mod http2;
pub mod netscaler;
pub mod peers;
pub mod proxy_protocol;
pub mod reply;
pub mod resp;
pub mod slot;
pub mod socks4;
pub mod spop;
pub mod syslog;
