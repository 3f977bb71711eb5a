//! The typed configurations of valid files.

use std::path::PathBuf;

use sluicegate_config::model::{
    AclRef, Action, BackendName, BindAddress, Mode, OnError, ProxyId, ReturnBody, ServerAddress, VarScope,
};
use sluicegate_config::{Environment, MemoryFiles, NoLua, load as load_files};

use crate::support::{TestLua, good, load};

const BASE: &str = "defaults\n mode http\n timeout client 1s\n timeout connect 1s\n timeout server 1s\n";

#[test]
fn a_proxy_starts_from_its_defaults() {
    let config = good(&format!(
        "{BASE} maxconn 7\ndefaults other\n mode tcp\n timeout client 5s\nfrontend a\n bind :1\nfrontend b from other\n bind :2\n"
    ));
    // The nearest defaults above `a` is `other`, whose name doesn't matter to that.
    assert_eq!((config.proxies[0].mode, config.proxies[0].maxconn), (Mode::Tcp, None));
    assert_eq!(config.proxies[1].timeouts.client.map(|t| t.as_secs()), Some(5));
}

/// As in HAProxy `log global` means the targets above it.
#[test]
fn global_targets_of_logs_are_those_above() {
    let config = good(&format!(
        "global\n log stdout local0\n{BASE} log global\nfrontend a\n bind :1\nglobal\n log stderr local0\nfrontend b\n log \
         global\n bind :2\n"
    ));
    let counts: Vec<usize> = config.proxies.iter().map(|proxy| proxy.log.len()).collect();
    assert_eq!(counts, [1, 2]);
}

#[test]
fn defaults_build_on_each_other() {
    let config = good(&format!(
        "{BASE}defaults x\n mode tcp\n timeout client 9s\ndefaults y from x\n maxconn 3\nfrontend f from y\n bind :1\n"
    ));
    let proxy = &config.proxies[0];
    assert_eq!((proxy.mode, proxy.maxconn, proxy.timeouts.client.map(|t| t.as_secs())), (Mode::Tcp, Some(3), Some(9)));
}

#[test]
fn rules_of_defaults_come_first_and_bring_their_acls() {
    let config = good(
        "defaults d\n mode http\n timeout client 1s\n acl bad src 192.0.2.1\n http-request deny if bad\n\
         frontend f from d\n bind :1\n acl fine path /\n http-request allow if fine\n",
    );
    let proxy = &config.proxies[0];
    assert_eq!((proxy.http_request.len(), proxy.acls.len()), (2, 1));
    let condition = proxy.http_request[0].condition.as_ref().expect("it has one");
    assert!(matches!(&condition.any[0][0].acl, AclRef::Inline(acl) if &*acl.name == "bad"));
    let condition = proxy.http_request[1].condition.as_ref().expect("it has one");
    assert!(matches!(condition.any[0][0].acl, AclRef::Named(0)));
}

#[test]
fn legacy_redirects_come_last() {
    let config = good(&format!("{BASE}frontend f\n bind :1\n redirect location /a\n http-request deny\n"));
    let rules = &config.proxies[0].http_request;
    assert!(matches!((&rules[0].action, &rules[1].action), (Action::Deny(_), Action::Redirect(_))));
}

#[test]
fn conditions_are_or_ed_groups() {
    let config = good(&format!(
        "{BASE}frontend f\n bind :1\n acl a path /a\n acl a path /b\n http-request deny unless a !{{ src 1.2.3.4 }} || TRUE\n"
    ));
    let proxy = &config.proxies[0];
    assert_eq!(proxy.acls[0].tests.len(), 2);
    let condition = proxy.http_request[0].condition.as_ref().expect("it has one");
    assert!(condition.unless);
    assert_eq!(condition.any.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert!(condition.any[0][1].negated);
}

#[test]
fn store_calls() {
    let config = good(&format!(
        "{BASE}store main\n MaxMemory 1g\nfrontend f\n bind :1\n http-request store-call main INCRBY \"h:%[src]\" 1 set-var(txn.h) on-error value:0 if TRUE\n"
    ));
    let Action::StoreCall(call) = &config.proxies[0].http_request[0].action else { panic!("another action") };
    assert_eq!((&*call.store, call.args.len()), ("main", 3));
    assert_eq!(call.set_var.as_ref().map(|v| (v.scope, &*v.name)), Some((VarScope::Txn, "h")));
    assert_eq!(call.on_error, OnError::Value("0".to_owned()));
    assert_eq!(config.stores[0].parameters[0].0, "maxmemory");
    assert_eq!(config.stores.len(), 1);
}

#[test]
fn backends_are_found_by_name() {
    let config = good(&format!(
        "{BASE}frontend f\n bind :1\n use_backend b if TRUE\n use_backend %[path]\n default_backend l\nbackend b\nlisten l\n bind :2\n"
    ));
    let proxy = &config.proxies[0];
    assert!(matches!(proxy.use_backend[0].target, BackendName::Static(ProxyId(1))));
    assert!(matches!(proxy.use_backend[1].target, BackendName::Dynamic(_)));
    assert_eq!(proxy.default_backend, Some(ProxyId(2)));
    assert_eq!(config.proxies.iter().map(|p| p.uid).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn sections_and_servers_are_numbered_by_their_place() {
    let numbers = |global: &str| {
        let config = good(&format!(
            "{global}{BASE}frontend f\n id 70\n bind :1\n default_backend b\nbackend b\n server x 127.0.0.1:1\n server y 127.0.0.1:1 id 3\n server z 127.0.0.1:1\n server w 127.0.0.1:1\nbackend c\n id 5\nbackend d\n"
        ));
        let servers = config.proxies[1].servers.iter().map(|server| server.sid).collect::<Vec<_>>();
        (config.proxies.iter().map(|p| p.uid).collect::<Vec<_>>(), servers)
    };
    assert_eq!(numbers(""), (vec![70, 2, 5, 4], vec![1, 3, 4, 5]));
    // The stats sockets' own frontend is the first.
    assert_eq!(numbers("global\n stats socket /run/s\n"), (vec![70, 3, 5, 6], vec![1, 3, 4, 5]));
}

#[test]
fn files_are_read() {
    let config = good(&format!(
        "{BASE}frontend f\n bind :1\n acl l src -f list.txt\n http-request return content-type a/b file page.html\n"
    ));
    let proxy = &config.proxies[0];
    assert_eq!(proxy.acls[0].tests[0].files[0].0.len(), 2);
    assert_eq!(config.patterns.all().len(), 1);
    let Action::Return(reply) = &proxy.http_request[0].action else { panic!("another action") };
    assert!(matches!(&reply.body, ReturnBody::Bytes(bytes) if &**bytes == b"<p>hello</p>"));
}

#[test]
fn variables_make_addresses() {
    let config = good(&format!("{BASE}listen l\n bind \"fd@${{fe1}}\"\n server s \"127.0.0.1:$PORT\"\n"));
    assert_eq!(config.proxies[0].binds[0].addresses, [BindAddress::Fd(7)]);
    assert!(matches!(config.proxies[0].servers[0].address, ServerAddress::Inet(..)));
}

#[test]
fn setenv_acts_on_the_lines_behind_it() {
    let mut env = Environment::new();
    let files = MemoryFiles::new()
        .with("d/1.cfg", "global\n setenv P 4000\n")
        .with("d/2.cfg", "listen l\n mode tcp\n timeout client 1s\n bind \":$P\"\n");
    let (config, diagnostics) = load_files(&files, &[PathBuf::from("d")], &mut env, &NoLua);
    let config = config.unwrap_or_else(|| panic!("refused:\n{diagnostics}"));
    assert!(matches!(config.proxies[0].binds[0].addresses[..], [BindAddress::Inet(_, 4000)]));
    assert_eq!((env.get("P"), env.get("HAPROXY_CFGFILES")), (Some("4000"), Some("d/1.cfg;d/2.cfg")));
}

/// 20,000 lines with an error in every tenth: all errors are found, up to the limit of kept ones.
#[test]
fn big_files() {
    let sections = 2000;
    let mut text = BASE.to_owned();
    for i in 0..sections {
        text.push_str(&format!(
            "listen l{i}\n bind :{}\n acl a path /x\n acl b src 10.0.0.0/8\n http-request deny if a !b\n\
             \x20use_backend l{} if a\n default_backend l{}\n server s 10.0.0.1:80 check\n server t 10.0.0.2:80\n stick-table x\n",
            i % 60000 + 1,
            (i * 7 + 1) % sections,
            (i * 13 + 1) % sections
        ));
    }
    let (config, diagnostics) = load(&text);
    assert!(config.is_none());
    assert_eq!((diagnostics.errors(), diagnostics.len()), (sections, sluicegate_config::limits::DIAGNOSTICS));
    let config = good(&text.replace(" stick-table x\n", ""));
    assert_eq!(config.proxies.len(), sections);
}

#[test]
fn lua_arguments_are_as_many_as_registered() {
    let _ = TestLua;
    let config = good(&format!("{BASE}frontend f\n bind :1\n http-request lua.pick if unless if TRUE\n"));
    let Action::Lua(lua) = &config.proxies[0].http_request[0].action else { panic!("another action") };
    assert_eq!(lua.args, ["if", "unless"]);
}

#[test]
fn a_script_that_fails_is_one_error() {
    use sluicegate_config::{Source, parse};
    let text = format!(
        "{BASE}global\n tune.lua.bool-sample-conversion normal\n lua-load a.lua\nlisten l\n bind :1\n http-request lua.gone a b if TRUE\n"
    );
    let mut draft = parse(Source::from_text("f", text), &MemoryFiles::new(), &mut Environment::new());
    assert!(!draft.global_failed());
    let at = draft.global().lua_loads[0].at.clone();
    draft.lua_failed(Some(at), "cannot open a.lua");
    let (config, diagnostics) = draft.finish(&MemoryFiles::new(), &NoLua);
    assert!(config.is_none());
    assert_eq!(diagnostics.to_string(), "f:8:11: error: cannot open a.lua\n   lua-load a.lua\n            ^\n");
}

/// Any bytes between single quotes are one word with the same bytes.
#[test]
fn quoted_bytes_are_one_word() {
    use proptest::prelude::*;
    proptest!(ProptestConfig::with_cases(200), |(text in "[^'\n\r\0]{1,40}")| {
        let config = good(&format!("{BASE}listen l\n bind :1\n http-request return content-type a/b string '{text}'\n"));
        let Action::Return(reply) = &config.proxies[0].http_request[0].action else { panic!("another action") };
        let ReturnBody::Bytes(bytes) = &reply.body else { panic!("another body") };
        prop_assert_eq!(&**bytes, text.as_bytes());
    });
}
