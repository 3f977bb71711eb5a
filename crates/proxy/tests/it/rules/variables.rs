//! Variables that are set under conditions, compared with haproxy.

use super::converters::requests;
use super::differential::{compare_on, show};

#[test]
fn variables_are_set_under_conditions() {
    let before = ["", "str()", "str(a)", "int(5)", "int(0)", "bool(true)", "src", "bin(00)", "unset"];
    let set = ["str()", "str(b)", "int(4)", "int(5)", "int(6)", "bool(false)", "src", "req.hdr(nope)", "text"];
    let conditions = [
        "ifexists",
        "ifnotexists",
        "ifempty",
        "ifnotempty",
        "ifset",
        "ifnotset",
        "ifgt",
        "iflt",
        "ifexists,ifgt",
        "ifgt,iflt",
        "ifnotexists,ifempty",
    ];
    let mut cases = Vec::new();
    for (number, condition) in conditions.iter().enumerate() {
        // Variables of the process exist as soon as the file names them.
        for scope in ["txn", "sess", "proc"] {
            let (mut rules, mut shown) = (String::new(), String::new());
            for (before_number, before) in before.iter().enumerate() {
                for (set_number, set) in set.iter().enumerate() {
                    let name = format!("{scope}.c{number}_{before_number}_{set_number}");
                    rules += &match *before {
                        "" => String::new(),
                        "unset" => {
                            format!(
                                " http-request set-var({name}) str(z) if {{}}\n http-request unset-var({name}) if {{}}\n"
                            )
                        }
                        value => format!(" http-request set-var({name}) {value} if {{}}\n"),
                    };
                    rules += &match *set {
                        "text" => format!(" http-request set-var-fmt({name},{condition}) a%[int(1)] if {{}}\n"),
                        value => format!(" http-request set-var({name},{condition}) {value} if {{}}\n"),
                    };
                    shown += &format!("%[var({name})]|");
                }
            }
            cases.push(rules + &show(&shown));
        }
    }
    compare_on(&requests(&["x"]), cases);
}
