//! Debian's own `/etc/haproxy/haproxy.cfg`, as its package installs it.

use std::process::Command;

use super::{HAPROXY, Place, ended};

const STOCK: &str = "/etc/haproxy/haproxy.cfg";

/// It is good, and nothing is said about it that Debian's haproxy does not say.
#[test]
fn it_checks() {
    let place = Place::new();
    for words in [["-c", "-f", STOCK], ["-cq", "-f", STOCK]] {
        let (ours, theirs) = (place.run(&words), place.run_peer(&words));
        assert_eq!((ours.code, &*ours.out, &*ours.err), (0, "Configuration file is valid\n", ""));
        assert_eq!((theirs.code, &*theirs.out), (0, &*ours.out));
    }
}

/// Starts in namespaces of its own, where the file's fixed paths are nobody else's, and looks at the process.
const LOOK: &str = r#"
mount -t tmpfs tmpfs /run/haproxy && chown haproxy:haproxy /run/haproxy || exit 99
"$0" -db -f /etc/haproxy/haproxy.cfg 2>/dev/null & pid=$!
for i in $(seq 400); do
    echo "show info" | socat -t5 - UNIX-CONNECT:/run/haproxy/admin.sock 2>/dev/null | grep -q ^Pid: && break
    sleep 0.05
done
echo "mode $(stat -c %a /run/haproxy/admin.sock)"
echo "level $(echo "show cli level" | socat -t5 - UNIX-CONNECT:/run/haproxy/admin.sock)"
echo "user $(stat -c %U /proc/$pid/task) $(awk '/^Uid/{print $2}' /proc/$pid/status) $(awk '/^Gid/{print $2}' /proc/$pid/status)"
echo "root $(readlink /proc/$pid/root)"
kill -USR1 $pid; wait $pid; echo "ended $?"
"#;

/// It starts, unmodified: chrooted, its user dropped, its socket with the mode and level of the file. Root's test; for
/// others the same start must fail with a reason.
#[test]
fn it_starts() {
    let place = Place::new();
    // SAFETY: the call takes nothing and can't fail.
    if unsafe { libc::geteuid() } != 0 {
        let failed = place.run(&["-db", "-f", STOCK]);
        assert!(failed.code == 1 && failed.err.contains("[ALERT]"), "{failed:?}");
        return;
    }
    let look = |program: &std::path::Path| {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "sh", "-c", LOOK]).arg(program);
        ended(command)
    };
    let (ours, theirs) = (look(&place.program()), look(HAPROXY.as_ref()));
    assert!(ours.out.contains("root /var/lib/haproxy\n"), "{ours:?}");
    assert!(ours.out.contains("mode 660\nlevel admin"), "{ours:?}");
    assert!(ours.out.ends_with("ended 0\n"), "{ours:?}");
    assert_eq!(ours.out, theirs.out, "{ours:?}\n{theirs:?}");
}
