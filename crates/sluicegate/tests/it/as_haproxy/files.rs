//! Files that are odd: the verdict is that of Debian's haproxy.

use super::{GOOD, Place};

#[test]
fn odd_files_get_haproxys_verdict() {
    let place = Place::new();
    let long_comment = format!("# {}\n{GOOD}", "x".repeat(60_000));
    let many_lines = format!("{}{GOOD}", "# a comment that fills the file\n".repeat(200_000));
    let mut words = String::from(" acl a path");
    (0..70).for_each(|_| words.push_str(" /x"));
    for (name, bytes) in [
        ("good.cfg", GOOD.as_bytes().to_vec()),
        ("empty.cfg", Vec::new()),
        ("comments.cfg", b"# nothing\n\n \t\n".to_vec()),
        ("no-end.cfg", GOOD.trim_end().as_bytes().to_vec()),
        ("no-end-comment.cfg", format!("{GOOD}# the end").into_bytes()),
        ("crlf.cfg", GOOD.replace('\n', "\r\n").into_bytes()),
        ("nul.cfg", GOOD.replace("client", "cli\0ent").into_bytes()),
        ("nul-comment.cfg", format!("# a\0b\n{GOOD}").into_bytes()),
        ("binary.cfg", (0..=255).collect()),
        ("text.cfg", b"This is a letter.\nIt has two lines.\n".to_vec()),
        ("bom.cfg", format!("\u{feff}{GOOD}").into_bytes()),
        ("long-line.cfg", long_comment.into_bytes()),
        ("huge.cfg", many_lines.into_bytes()),
        ("words.cfg", format!("{GOOD}{words}\n").into_bytes()),
        ("quote.cfg", format!("{GOOD} acl a path \"/x\n").into_bytes()),
        ("escape.cfg", format!("{GOOD} acl a path /x\\\n").into_bytes()),
        ("out.cfg", format!(" maxconn 1\n{GOOD}").into_bytes()),
        ("if.cfg", format!("{GOOD}.if 1\n").into_bytes()),
        ("endif.cfg", format!("{GOOD}.endif\n").into_bytes()),
        ("alert.cfg", format!("{GOOD}.alert \"no\"\n").into_bytes()),
        ("variable.cfg", format!("{GOOD} description \"${{NONE_SUCH}}\"\n").into_bytes()),
        ("word-variable.cfg", format!("{GOOD} maxconn \"${{NONE_SUCH}}\"\n").into_bytes()),
        ("default-variable.cfg", format!("{GOOD} maxconn \"${{NONE_SUCH-5}}\"\n").into_bytes()),
        ("brace.cfg", format!("{GOOD} maxconn \"${{NONE_SUCH\"\n").into_bytes()),
        ("utf8.cfg", format!("# Grüße\n{GOOD}").into_bytes()),
        ("stats-user.cfg", format!("global\n stats socket /tmp/s user nosuchuser\n{GOOD}").into_bytes()),
        ("stats-group.cfg", format!("global\n stats socket /tmp/s group nosuchgroup\n{GOOD}").into_bytes()),
        ("stats-root.cfg", format!("global\n stats socket /tmp/s user root group root\n{GOOD}").into_bytes()),
        ("unix-bind.cfg", format!("global\n unix-bind user nosuchuser\n stats socket /tmp/s\n{GOOD}").into_bytes()),
        ("bind-user.cfg", format!("{GOOD} bind unix@/tmp/u user nosuchuser\n").into_bytes()),
        ("bind-group.cfg", format!("{GOOD} bind unix@/tmp/u group nosuchgroup\n").into_bytes()),
        ("latin1.cfg", [b"# Gr\xfc\xdfe\n".as_slice(), GOOD.as_bytes()].concat()),
    ] {
        place.write(name, bytes);
        same(&place, name);
    }
}

#[test]
fn odd_paths_get_haproxys_verdict() {
    let place = Place::new();
    place.write("good.cfg", GOOD);
    std::fs::create_dir_all(place.path().join("dir/sub.cfg")).unwrap();
    for name in ["dir/b.cfg", "dir/.hidden.cfg", "dir/other.conf"] {
        place.write(name, if name == "dir/b.cfg" { GOOD } else { "wrong\n" });
    }
    place.write("dir/a.cfg", "defaults\n mode http\n");
    std::fs::create_dir(place.path().join("none")).unwrap();
    std::os::unix::fs::symlink("loop", place.path().join("loop")).unwrap();
    std::os::unix::fs::symlink("good.cfg", place.path().join("link")).unwrap();
    std::os::unix::fs::symlink("gone.cfg", place.path().join("dangling")).unwrap();
    for name in ["gone.cfg", "dir", "none", "loop", "link", "dangling", "good.cfg/x", "/dev/null", "./good.cfg", ""] {
        same(&place, name);
    }
    // Two files of one name of a section, and a file that goes on in the section of the one before it.
    place.write("more.cfg", " maxconn 5\n");
    for files in [["good.cfg", "good.cfg"], ["good.cfg", "more.cfg"], ["dir/a.cfg", "good.cfg"], ["good.cfg", "gone"]] {
        let words = ["-c", "-f", files[0], "-f", files[1]];
        let (ours, theirs) = (place.run(&words), place.run_peer(&words));
        assert_eq!(ours.code, theirs.code, "{files:?}\n--- ours\n{ours:?}\n--- theirs\n{theirs:?}");
    }
}

#[track_caller]
fn same(place: &Place, name: &str) {
    let (ours, theirs) = (place.run(&["-c", "-f", name]), place.run_peer(&["-c", "-f", name]));
    assert_eq!(ours.code, theirs.code, "{name}\n--- ours\n{ours:?}\n--- theirs\n{theirs:?}");
    // A refusal names the file and, where there is one, the line.
    if ours.code == 1 {
        assert!(ours.err.contains(name), "{ours:?}");
    }
}
