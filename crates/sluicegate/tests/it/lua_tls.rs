//! Scripts that connect with TLS: `core.httpclient` over https and `connect_ssl`, compared with HAProxy 2.8.

use std::io::{Read, Write};
use std::net::TcpStream;

use sluicegate_testkit::{Haproxy, Listening, wait_for};

use crate::start;
use crate::tls::Pki;

/// The actions that are compared; `PORT` is that of a frontend with TLS for `a.example` and `b.example`.
const ACTIONS: [&str; 6] = [
    "local r = core.httpclient():get{url = 'https://a.example:PORT/x', dst = '127.0.0.1:PORT'}
     return r.status .. r.reason .. ' ' .. r.body",
    "local r = core.httpclient():post{url = 'https://b.example/', dst = '127.0.0.1:PORT', body = ('x'):rep(100000)}
     return r.status .. r.reason .. ' ' .. r.body",
    // The name in the field decides.
    "local r = core.httpclient():get{url = 'https://1.2.3.4/', dst = '127.0.0.1:PORT', headers = {Host = {'b.example'}}}
     return r.status .. r.reason .. ' ' .. r.body",
    // The certificate is for other names.
    "return core.httpclient():get{url = 'https://other.example/', dst = '127.0.0.1:PORT'}.status",
    "local s = core.tcp()
     if not s:connect_ssl('127.0.0.1', PORT) then return 'not connected' end
     s:send('GET / HTTP/1.1\\r\\nHost: h\\r\\nConnection: close\\r\\n\\r\\n')
     local line, all = s:receive(), s:receive('*a')
     s:close()
     return line .. ' ' .. all:match('\\r\\n\\r\\n(.*)')",
    "local s = core.tcp()
     local big = ('y'):rep(300000)
     s:connect_ssl('127.0.0.1', PORT)
     local sent = s:send('POST / HTTP/1.1\\r\\nHost: h\\r\\nContent-Length: 300000\\r\\n\\r\\n' .. big)
     return sent .. s:receive()",
];

/// Returns a configuration whose first frontend has TLS, and whose second runs the action that a path names.
fn configuration(pki: &Pki, side: &str, listening: &[Listening], verify: &str, alpn: &str) -> String {
    let script = pki.path(&format!("{side}.lua"));
    let code: String = ACTIONS
        .iter()
        .enumerate()
        .map(|(index, body)| {
            format!(
                "core.register_action('a{index}', {{'http-req'}}, function(txn)\n\
                 txn:set_var('txn.result', tostring((function() {} end)()))\nend)\n",
                body.replace("PORT", &listening[0].port().to_string())
            )
        })
        .collect();
    std::fs::write(&script, code).expect("writable");
    let actions: String =
        (0..ACTIONS.len()).map(|index| format!("    http-request lua.a{index} if {{ path /{index} }}\n")).collect();
    format!(
        "global\n    {verify}\n    lua-load {}\n\
         defaults\n    mode http\n    timeout client 60s\n    timeout server 60s\n    timeout connect 60s\n\
         frontend tls\n    bind {} ssl crt {} crt {} alpn {alpn}\n    http-request wait-for-body time 10s if METH_POST\n    \
         http-request return status 200 content-type text/plain lf-string %[ssl_fc_sni],%[method],%[fc_http_major]\n\
         frontend http\n    bind {}\n{actions}    \
         http-request return status 200 content-type text/plain lf-string %[var(txn.result)]\n",
        script.display(),
        listening[0].word(),
        pki.path("both/a.pem").display(),
        pki.path("b.pem").display(),
        listening[1].word(),
    )
}

/// Returns the result of an action.
fn result(port: u16, action: usize) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    write!(stream, "GET /{action} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").expect("writable");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split_once("\r\n\r\n").map_or(answer.clone(), |(_, body)| body.to_owned())
}

#[test]
fn scripts_connect_with_tls_as_in_haproxy() {
    let pki = Pki::new();
    let ca = format!("httpclient.ssl.ca-file {}", pki.path("ca.crt").display());
    for (verify, alpn) in [(&*ca, "http/1.1"), ("httpclient.ssl.verify none", "http/1.1"), (&*ca, "h2,http/1.1")] {
        let [theirs, ours] = [(); 2].map(|()| [Listening::new(), Listening::new()]);
        let _haproxy =
            Haproxy::start_2_8(&configuration(&pki, "theirs", &theirs, verify, alpn), &[&theirs[0], &theirs[1]]);
        let _sluicegate = start(&configuration(&pki, "ours", &ours, verify, alpn), &[&ours[0], &ours[1]]);
        for (index, action) in ACTIONS.iter().enumerate() {
            // HAProxy may reset a connection whose body it has not read whole, and the script ends in an error then.
            let expected = wait_for(action, || Some(result(theirs[1].port(), index)).filter(|text| !text.is_empty()));
            let actual = result(ours[1].port(), index);
            assert_eq!(actual, expected, "{verify}, {alpn}: {action}");
            let speaks_http2 = alpn.starts_with("h2") && index < 3;
            assert_eq!(actual.ends_with(",2"), speaks_http2, "{alpn}: {action}");
        }
    }
}
