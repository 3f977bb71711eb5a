//! `option socket-stats`: the figures of listening sockets, beside Debian's haproxy, wherever they are told.

use std::collections::BTreeMap;

use sluicegate_testkit::{Client, wait_for};

use super::{Both, get};

/// Tells every listener's figures, in an order that does not depend on the state's hashes.
const SCRIPT: &str = "
core.register_service('listeners', 'http', function(applet)
  local lines = {}
  for _, proxy in pairs(core.frontends) do
    if proxy.name ~= 'plain' then
      for name, listener in pairs(proxy.listeners) do
        for column, value in pairs(listener:get_stats()) do
          lines[#lines + 1] = string.format('%s/%s %s %s %s', proxy.name, name, column, type(value), value)
        end
      end
    end
  end
  table.sort(lines)
  local body = table.concat(lines, '\\n')
  applet:set_status(200)
  applet:add_header('Content-Length', tostring(#body))
  applet:start_response()
  applet:send(body)
end)
";

/// The stats socket, three sockets of `f`, one of `t`, and one that has no figures of its own and tells of the others.
fn file(words: &[String], script: &str) -> String {
    let [stats, one, seven, third, tcp, plain] = words else { panic!("six sockets") };
    format!(
        "global\n nbthread 1\n stats socket {stats} level admin\n lua-load {script}\n\
         defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 1s\n retries 0\n option socket-stats\n\
         frontend f\n maxconn 3\n bind {one} name one maxconn 2\n bind {seven} id 7\n bind {third} id 3\n \
         tcp-request connection reject if {{ so_id 7 }}\n tcp-request session reject if {{ src_port 0 }}\n \
         http-request deny if {{ path /deny }}\n http-request set-var(txn.path) path\n \
         http-request return status 500 content-type a/b lf-string %[path] if {{ path_beg /own }}\n \
         http-response deny if {{ var(txn.path) -m str /deny-response }}\n default_backend b\n\
         backend b\n server s {plain_address}\n\
         frontend t\n mode tcp\n bind {tcp} name \"a b\"\n tcp-request inspect-delay 5s\n \
         tcp-request content reject if {{ req.payload(0,1) -m str x }}\n \
         tcp-request content accept if {{ req.len gt 0 }}\n default_backend tcp\n\
         backend tcp\n mode tcp\n server s {plain_address}\n\
         frontend plain\n no option socket-stats\n bind {plain}\n stats enable\n stats uri /stats\n \
         stats show-legends\n http-request use-service prometheus-exporter if {{ path /metrics }}\n \
         http-request use-service lua.listeners if {{ path /lua }}\n http-request return status 200 if !{{ path_beg /stats }}\n",
        plain_address = "127.0.0.1:9",
    )
}

struct Sockets {
    both: Both,
    _script: tempfile::NamedTempFile,
}

impl Sockets {
    fn start() -> Sockets {
        let script = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(script.path(), SCRIPT).expect("writable");
        let path = script.path().to_str().expect("UTF-8").to_owned();
        let both = Both::start(6, |words| file(words, &path));
        Sockets { both, _script: script }
    }

    /// What each stats socket answers, ports masked.
    fn command(&self, line: &str) -> [String; 2] {
        self.both.addresses.each_ref().map(|addresses| {
            let mut client = Client::connect(&addresses[0]);
            client.send(format!("{line}\n"));
            client.finish();
            masked(&String::from_utf8_lossy(&client.read_to_end()), addresses)
        })
    }

    /// What each says over HTTP, ports masked.
    fn page(&self, target: &str) -> [String; 2] {
        let [theirs, ours] = self.both.ask(5, &get(target, ""));
        let [of_theirs, of_ours] = &self.both.addresses;
        [masked(&theirs.text(), of_theirs), masked(&ours.text(), of_ours)]
    }

    /// The sockets' lines in all formats are the same, and so is what scripts and scrapers see.
    #[track_caller]
    fn same(&self, when: &str) {
        let [theirs, ours] = self.command("show stat -1 8 -1").map(|text| rows(&text));
        assert_eq!((theirs.len(), ours.len()), (4, 4), "{theirs:?}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let differ: Vec<_> = ours.iter().filter(|(name, cell)| theirs.get(*name) != Some(cell)).collect();
            let theirs: Vec<_> = differ.iter().map(|(name, _)| theirs.get(*name)).collect();
            assert!(differ.is_empty(), "{differ:?} instead of {theirs:?} of {}, {when}", ours["svname"]);
        }
        let [theirs, ours] = self.command("show stat f 8 7").map(|text| rows(&text));
        assert_eq!(ours, theirs, "{when}");
        let [theirs, ours] = self.command("show stat -1 8 -1 typed").map(|text| unplaced(&text, '.', 3));
        let is_known = |line: &String| !line.contains(".conn_tot.") && !line.contains(".proto.");
        assert_eq!(ours.into_iter().filter(is_known).collect::<Vec<_>>(), theirs, "{when}");
        let [theirs, ours] = self.command("show stat t 8 1 json");
        for object in theirs.split("{\"objType\"").skip(1) {
            // Positions behind the columns that are later than 2.6 differ.
            let named = object.split_once("\"name\"").expect("a name").1;
            assert!(ours.contains(named.trim_end().trim_end_matches(['[', ']', ','])), "{named} of {ours}, {when}");
        }
        let [theirs, ours] = self.page("/metrics").map(|text| families(&text));
        assert_eq!(ours, theirs, "{when}");
        let [theirs, ours] = self.page("/lua").map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
        assert!(theirs.len() > 60, "{theirs:?}");
        let is_known = |line: &String| !line.contains(" conn_tot ") && !line.contains(" proto ");
        assert_eq!(ours.into_iter().filter(is_known).collect::<Vec<_>>(), theirs, "{when}");
    }
}

/// Each proxy's number of a port, in place of the port.
fn masked(text: &str, addresses: &[String]) -> String {
    let mut text = text.to_owned();
    for (index, address) in addresses.iter().enumerate() {
        text = text.replace(address, &format!("ADDRESS{index}"));
    }
    text
}

/// The lines of `show stat` by the columns that 2.6 has.
fn rows(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let names: Vec<&str> = lines.next().expect("a head").trim_start_matches("# ").split(',').collect();
    // Of sockets `conn_tot` is one of them.
    let later = [
        "srid",
        "sess_other",
        "h1sess",
        "h2sess",
        "h3sess",
        "req_other",
        "h1req",
        "h2req",
        "h3req",
        "proto",
        "ssl_ocsp_staple",
        "ssl_failed_ocsp_staple",
        "conn_tot",
    ];
    let row = |line: &str| {
        let cells = names.iter().zip(line.split(','));
        let known = cells.filter(|(name, _)| !later.contains(name));
        known.map(|(name, cell)| ((*name).to_owned(), cell.to_owned())).collect()
    };
    lines.map(row).collect()
}

/// Lines without their word of this number.
fn unplaced(text: &str, separator: char, number: usize) -> Vec<String> {
    let without = |line: &str| {
        let words = line.split(separator).enumerate().filter(|(index, _)| *index != number);
        words.map(|(_, word)| word).collect::<Vec<_>>().join(".")
    };
    // Two columns of 3.2.
    text.lines().filter(|line| !line.contains("ocsp_staple.")).map(without).collect()
}

/// The metrics of listeners that 2.6 has.
fn families(text: &str) -> Vec<String> {
    let known =
        |line: &&str| line.starts_with("haproxy_listener_") && !line.starts_with("haproxy_listener_connections_total");
    text.lines().filter(known).map(str::to_owned).collect()
}

#[test]
fn figures_of_sockets_are_haproxys() {
    let sockets = Sockets::start();
    sockets.same("at the start");
    // HAProxy drops a pipelined request if the client's end arrives before it comes to it.
    let answered = |frontend: usize, bytes: &str, responses: usize| {
        for addresses in &sockets.both.addresses {
            let mut client = Client::connect(&addresses[frontend]);
            client.send(bytes);
            for _ in 0..responses {
                client.read_response();
            }
            client.finish();
            client.read_to_end();
        }
    };
    let talk = |frontend, bytes: &str| answered(frontend, bytes, 0);
    talk(1, &get("/own", "Connection: close\r\n"));
    answered(1, &get("/own/twice", "").repeat(2), 2);
    talk(1, &get("/deny", ""));
    talk(3, "no request at all\r\n\r\n");
    talk(3, &get("/deny", ""));
    // Nobody serves these: 503.
    talk(3, &get("/nobody", ""));
    talk(4, "x is rejected");
    talk(4, "anything else");
    for addresses in &sockets.both.addresses {
        let mut client = Client::connect(&addresses[2]);
        client.read_to_end();
    }
    settled(&sockets, |rows| rows.iter().all(|row| row["scur"] == "0"));
    sockets.same("after some requests");

    // Two connections fill the first socket, a third the frontend.
    let fill = |frontend: usize| {
        sockets.both.addresses.each_ref().map(|addresses| {
            let mut client = Client::connect(&addresses[frontend]);
            client.send(get("/own", ""));
            client.read_response();
            client
        })
    };
    let status =
        |rows: &[BTreeMap<String, String>]| rows.iter().map(|row| row["status"].clone()).collect::<Vec<_>>().join(" ");
    let first = [fill(1), fill(1)];
    settled(&sockets, |rows| status(rows) == "FULL OPEN OPEN OPEN");
    sockets.same("with a full socket");
    let second = fill(3);
    settled(&sockets, |rows| status(rows) == "FULL OPEN WAITING OPEN");
    sockets.same("with a full frontend");
    drop((first, second));
    settled(&sockets, |rows| status(rows) == "OPEN OPEN OPEN OPEN" && rows.iter().all(|row| row["scur"] == "0"));
    sockets.same("after the clients have left");
    sockets.command("clear counters");
    sockets.same("after 'clear counters'");
    sockets.command("clear counters all");
    sockets.same("after 'clear counters all'");

    // Without the option there is no line.
    let [theirs, ours] = sockets.command("show stat plain -1 -1");
    assert_eq!([theirs.lines().count(), ours.lines().count()], [3, 3]);
    let [_, ours] = sockets.page("/stats");
    for row in ["<th scope=row>one<small>ADDRESS1, id 1</small>", "<th scope=row>sock-7<small>", "<tr class=\"so up\">"]
    {
        assert!(ours.contains(row), "{ours}");
    }
}

/// Waits until the lines of both say so.
fn settled(sockets: &Sockets, wanted: impl Fn(&[BTreeMap<String, String>]) -> bool) {
    wait_for("the sockets' lines", || {
        let [theirs, ours] = sockets.command("show stat -1 8 -1").map(|text| rows(&text));
        (wanted(&theirs) && wanted(&ours)).then_some(())
    });
}
