//! Scripts in the shapes that are found in the wild, run in haproxy and here: authentication by a subrequest, a bouncer
//! that asks who may pass and remembers it, an HTTP client over sockets.

use super::compared::compare;
use super::httpclient::server;

#[test]
fn a_subrequest_decides_about_the_request() {
    let address = server();
    let lines = format!(" server auth {address}\n server spare 127.0.0.1:1 disabled\n");
    let ask = "local function ask(txn, path)
          for name, server in pairs(core.backends['gate'].servers) do
            local status = server:get_stats()['status']
            if status == 'UP' or status == 'no check' then
              local url = 'http://' .. server:get_addr() .. path
              local answer = core.httpclient():get{ url = url, headers = { ['x-original'] = { txn.sf:path() } } }
              txn:set_var('txn.auth_status', answer.status)
              txn:set_var('txn.auth_ok', 200 <= answer.status and answer.status < 300)
              return name, answer.status, answer.headers['x-a'] and answer.headers['x-a'][0]
            end
          end
        end\n";
    let cases = ["/chunk", "/moved", "/close"].map(|path| {
        format!(
            "{ask} local name, status, field = ask(txn, '{path}')
             return name, status, field, txn:get_var('txn.auth_status'), txn:get_var('txn.auth_ok')"
        )
    });
    compare(&lines, &cases.each_ref().map(String::as_str));
}

#[test]
fn a_bouncer_asks_once_and_remembers() {
    let lines = " stick-table type ip size 100 expire 1m store gpc0,http_req_cnt\n http-request track-sc0 src\n";
    let case = format!(
        "cache = cache or {{}}
         local ip = tostring(txn.f:src())
         local known = cache[ip]
         if not known then
           local answer = core.httpclient():get{{ url = 'http://{}/chunk?ip=' .. ip, timeout = 5000 }}
           known = answer.status == 200 and answer.body or 'allow'
           cache[ip] = known
         end
         local entry = core.frontends['gate'].stktable:lookup(ip)
         return known, txn.sf:method(), txn.f:req_body_len(), entry.http_req_cnt, entry.gpc0",
        server()
    );
    compare(lines, &[&case, &case]);
}

#[test]
fn an_http_client_over_sockets_reads_lines_and_counts() {
    let address = server();
    let case = format!(
        "local client = core.tcp()
         client:settimeout(5)
         client:connect('{}', {})
         client:send('GET /echo HTTP/1.1\\r\\nhost: h\\r\\n\\r\\n')
         local words = core.tokenize(client:receive('*l'), ' ')
         local fields = {{}}
         while true do
           local line = client:receive('*l')
           if line == nil or line == '' then break end
           local parts = core.tokenize(line, ':', true)
           fields[parts[1]:lower()] = parts[2]:match('%S+')
         end
         local body = client:receive(tonumber(fields['content-length']))
         client:close()
         return words[2], fields, #body, body",
        address.ip(),
        address.port()
    );
    compare("", &[&case]);
}
