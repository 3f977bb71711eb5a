//! `mailers` and `email-alert`.

use std::io::Write;
use std::net::TcpStream;

use sluicegate_testkit::{Haproxy, Listening};

use super::{Collector, Runner, line, ours, theirs};

fn text(lines: &str, mailers: &[&Collector]) -> String {
    let mailers: String =
        mailers.iter().enumerate().map(|(index, mailer)| format!(" mailer m{index} {}\n", mailer.address())).collect();
    format!(
        "global\n nbthread 1\n stats socket PLACE level admin\nmailers post\n timeout mail 20s\n{mailers}defaults\n mode http\n \
         timeout client 60s\n timeout connect 60s\n timeout server 60s\nfrontend f\n bind FRONT\n default_backend b\nbackend b\n \
         email-alert mailers post\n email-alert from gate@example.org\n email-alert to ops@example.org\n{lines} server s \
         127.0.0.1:1 disabled\n server other 127.0.0.1:1\n"
    )
}

/// Receives one mail, and returns what the client says.
fn receive(mailer: &Collector) -> Vec<String> {
    let mut from = mailer.accept();
    let mut to: TcpStream = from.get_ref().try_clone().expect("duplicable");
    let mut said = Vec::new();
    to.write_all(b"220-mail\r\n220 ready\r\n").expect("writable");
    for _ in 0..4 {
        let command = line(&mut from);
        to.write_all(if command == "DATA\r\n" { b"354 go on\r\n" } else { b"250 ok\r\n" }).expect("writable");
        said.push(command);
    }
    while said.last().is_none_or(|line| line != ".\r\n") {
        said.push(line(&mut from));
    }
    to.write_all(b"250 queued\r\n").expect("writable");
    said.push(line(&mut from));
    to.write_all(b"221 bye\r\n").expect("writable");
    // The date is now.
    let date = said.iter_mut().find(|line| line.starts_with("Date: ")).expect("a date");
    assert!(date.trim_end().ends_with(')') && date.len() > 35, "{date}");
    "Date: NOW\r\n".clone_into(date);
    said
}

#[test]
fn mails_are_those_of_haproxy() {
    let lines = " email-alert level notice\n email-alert myhostname gate\n";
    let peers: [fn(&str) -> Runner; 3] =
        [ours, |text| theirs(text, Haproxy::start), |text| theirs(text, Haproxy::start_2_8)];
    let mails = peers.map(|start| {
        let mailers = [Collector::new(), Collector::new()];
        let runner = start(&text(lines, &mailers.each_ref()));
        assert_eq!(runner.ask("set server b/other state drain").trim(), "");
        let drained = mailers.each_ref().map(receive);
        assert_eq!(drained[0], drained[1]);
        drained[0].clone()
    });
    assert_eq!(mails[0], mails[1]);
    assert_eq!(mails[0], mails[2]);
    assert_eq!(
        mails[0][..5],
        [
            "HELO gate\r\n",
            "MAIL FROM:<gate@example.org>\r\n",
            "RCPT TO:<ops@example.org>\r\n",
            "DATA\r\n",
            "From: gate@example.org\r\n"
        ]
    );
    assert!(mails[0].contains(&"QUIT\r\n".to_owned()));
}

#[test]
fn servers_that_go_down_and_come_up() {
    let checked = |mailer: &Collector, level: &str| {
        text(level, &[mailer])
            .replace("server other 127.0.0.1:1", "server other 127.0.0.1:1 check inter 50ms fall 1 rise 1")
    };
    let mailer = Collector::new();
    let _runner = ours(&checked(&mailer, " email-alert myhostname gate\n"));
    let mail = receive(&mailer);
    let subject = mail.iter().find(|line| line.starts_with("Subject: ")).expect("a subject");
    assert!(
        subject.starts_with("Subject: [HAProxy Alert] Server b/other is DOWN, reason: Layer4 connection problem"),
        "{subject}"
    );
    // The text is the subject's, without a full stop.
    assert!(mail.contains(&subject.replace("Subject: [HAProxy Alert] ", "")) && !subject.contains("queue."));
    // Results of checks are mailed if they are logged.
    let mailer = Collector::new();
    let lines = " email-alert myhostname gate\n email-alert level info\n option log-health-checks\n";
    let _runner = ours(&checked(&mailer, lines));
    let subjects = [(); 2].map(|()| {
        let mail = receive(&mailer);
        mail.into_iter().find(|line| line.starts_with("Subject: ")).expect("a subject")
    });
    assert!(subjects[0].contains("Health check for server b/other failed"), "{subjects:?}");
    assert!(subjects[1].contains("Server b/other is DOWN"), "{subjects:?}");
}

#[test]
fn a_mailer_that_refuses_loses_the_alert_alone() {
    let mailer = Collector::new();
    let runner = ours(&text(" email-alert level notice\n", &[&mailer]));
    runner.ask("set server b/other state drain");
    let mut from = mailer.accept();
    from.get_ref().write_all(b"554 no\r\n").expect("writable");
    // The connection ends without a word.
    assert_eq!(line(&mut from), "");
    runner.ask("set server b/other state ready");
    runner.ask("set server b/other state drain");
    assert!(receive(&mailer).iter().any(|line| line.contains("Server b/other enters drain state")));
}

#[test]
fn incomplete_settings_are_warned_about() {
    let mailer = Collector::new();
    let text = text("", &[&mailer]).replace(" email-alert to ops@example.org\n", "");
    let front = Listening::new();
    let mut runner = crate::start(&text.replace("PLACE", "@DIR@/stats").replace("FRONT", &front.word()), &[&front]);
    runner.program.wait_for_output("'email-alert' will be ignored for backend 'b' (the presence any of");
}

/// Sends the alerts itself, when a server enters drain, and answers with a proxy's settings.
const SCRIPT: &str = r#"
core.disable_legacy_mailers()
local shown
core.register_init(function()
  local backend = core.backends.b
  assert(core.frontends.f:get_mailers() == nil)
  local settings = backend:get_mailers()
  local lines = {}
  for name, value in pairs(settings) do
    if name == 'mailservers' then
      for server, address in pairs(value) do lines[#lines + 1] = server .. '=' .. address end
    else
      lines[#lines + 1] = name .. '=' .. type(value) .. ':' .. tostring(value)
    end
  end
  table.sort(lines)
  shown = table.concat(lines, ',')
  backend.servers.other:event_sub({ 'SERVER_ADMIN' }, function(event, data)
    local settings = data.reference:get_proxy():get_mailers()
    for name, address in pairs(settings.mailservers) do
      local tcp = core.tcp()
      tcp:settimeout(settings.mailservers_timeout / 1000)
      tcp:connect(address)
      tcp:send('MAIL ' .. tostring(data.admin.new_admin.DRAIN) .. '\n')
      tcp:send('late: ' .. tostring((pcall(core.disable_legacy_mailers))) .. '\n')
      tcp:send(shown .. '\n')
      tcp:close()
    end
  end)
end)
"#;

#[test]
fn a_script_sends_the_mails() {
    let lines = " email-alert level notice\n email-alert myhostname gate\n option log-health-checks\n";
    // 2.8 does not know the setting without which 3.2 warns.
    let peers: [fn(&str) -> Runner; 2] = [
        |text| ours(&text.replace(" lua-load", " tune.lua.bool-sample-conversion normal\n lua-load")),
        |text| theirs(text, Haproxy::start_2_8),
    ];
    let said = peers.map(|start| {
        let directory = tempfile::tempdir().expect("a directory");
        let script = directory.path().join("script.lua");
        std::fs::write(&script, SCRIPT).expect("writable");
        let mailer = Collector::new();
        let text = text(lines, &[&mailer]);
        // Without the script's word the use of the process's own mails would be a warning (of 3.2).
        let global = format!(" nbthread 1\n zero-warning\n lua-load {}\n", script.display());
        let runner = start(&text.replace(" nbthread 1\n", &global));
        assert_eq!(runner.ask("set server b/other state drain").trim(), "");
        // Without the script's word the process's own mail would come first, and wait for the server to speak.
        let mut from = mailer.accept();
        [(); 3].map(|()| line(&mut from)).concat().replace(&mailer.address(), "ADDRESS")
    });
    assert_eq!(said[0], said[1]);
    assert_eq!(
        said[0],
        "MAIL true\nlate: false\nlog_level=number:5,m0=ADDRESS,mailservers_timeout=number:20000,\
         smtp_from=string:gate@example.org,smtp_hostname=string:gate,smtp_to=string:ops@example.org,\
         track_server_health=boolean:true\n"
    );
}
