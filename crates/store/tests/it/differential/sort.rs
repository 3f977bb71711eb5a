//! SORT by other keys and SORT that gets other keys, compared with redis-server: single cases, and long lists.

use sluicegate_wire::resp::Protocol;

use super::Pair;

#[test]
fn patterns_lead_to_other_keys_as_in_redis() {
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut pair = Pair::new(protocol);
        let script = "
            RPUSH l 1 2 3 4 10
            MSET w_1 3 w_2 1 w_3 2 w_10 -7 text_1 b text_2 a text_3 C text_4 \"\" o_1 one o_3 three * star #1 sharp
            HSET h_1 f 9 g x n 5
            HSET h_2 f 10 g y
            HSET h_3 f 1
            SET h_4 string
            RPUSH o_2 list
            SADD s 1 2 3
            ZADD z 3 1 2 2 1 3
            SORT l BY w_*
            SORT l BY w_* DESC
            SORT l BY w_* LIMIT 1 2
            SORT l BY w_* LIMIT 3 100
            SORT l BY w_* LIMIT -1 2
            SORT l BY w_* GET #
            SORT l BY w_* GET o_*
            SORT l BY w_* GET # GET o_* GET none_* GET w_*
            SORT l BY text_*
            SORT l BY text_* ALPHA
            SORT l BY text_* ALPHA DESC
            SORT l BY none_*
            SORT l BY none_* DESC
            SORT l BY o_*
            SORT l BY h_*->f
            SORT l BY h_*->f ALPHA
            SORT l BY h_*->f DESC GET h_*->g GET h_*->none GET h_*
            SORT l BY h_*-> GET h_*->
            SORT l BY h_*->f->g GET h_*->f->g
            SORT l BY *->f GET *
            SORT l BY ** GET ** GET o_*_*
            SORT l GET o_*
            SORT l DESC GET o_* GET #
            SORT l GET constant
            SORT l GET constant GET #
            SORT l GET \"\"
            SORT l GET #*
            SORT l GET ##
            SORT l BY # GET o_*
            SORT l BY nosort GET o_*
            SORT l BY nosort DESC GET o_* LIMIT 1 2
            SORT l BY nosort GET # GET w_* LIMIT 0 3
            SORT l BY w_* BY nosort GET #
            SORT l BY nosort BY w_* GET #
            SORT l ALPHA LIMIT 0 2 GET w_*
            SORT_RO l BY w_* GET o_* DESC
            SORT_RO l BY w_* STORE d
            SORT s BY w_*
            SORT s BY w_* GET w_* DESC
            SORT s GET w_*
            SORT s BY nosort STORE d GET w_*
            LRANGE d 0 -1
            SORT z BY w_*
            SORT z BY nosort GET w_*
            SORT z BY nosort GET w_* DESC LIMIT 0 2
            SORT w_1 BY w_*
            SORT w_1 BY w_* STORE d
            SORT none BY w_* GET o_*
            SORT h_1 GET w_*
            SORT l BY w_* GET o_* STORE d
            LRANGE d 0 -1
            OBJECT ENCODING d
            SORT l BY w_* GET # GET w_* STORE d
            LRANGE d 0 -1
            SORT l BY o_* GET # STORE d
            LRANGE d 0 -1
            SORT none BY w_* STORE d
            EXISTS d
            SORT l BY w_* LIMIT 0 0 STORE l2
            EXISTS l2
            SORT l BY w_* STORE w_1
            TYPE w_1
            SET w_1 3
            SORT l BY w_* STORE l
            LRANGE l 0 -1
            SORT l BY w_* GET
            SORT l BY w_* LIMIT x 1
            SORT l BY w_* JUNK
            SORT l BY
            RPUSH twice 2 1 2 1 3
            SORT twice BY w_* GET #
            SORT twice BY nosort GET o_*
            RPUSH floats 1.5 x \"\"
            SORT floats BY nosort GET w_*
            SORT floats GET w_*
            MSET w_x nan w_1.5 2
            SORT floats BY w_*
            SET w_x inf
            SORT floats BY w_*
            SET w_x 0x10
            SORT floats BY w_*
            SET w_x 0e999
            SORT floats BY w_*
            SET w_x -infinity
            SORT floats BY w_*
            SET w_x 1e308
            SORT floats BY w_*
            SET w_x 1e400
            SORT floats BY w_*
            SET w_x -1e400
            SORT floats BY w_*
            SET w_x 1e-400
            SORT floats BY w_*
        ";
        // In the last three cases, Redis takes the numbers after an out-of-range one as out of range, too, as errno
        // remains set.
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            pair.check_line(line);
        }
        // The part of a weight behind a NUL counts only if the result is stored.
        pair.check(&["MSET", "z_1", "a\0b", "z_2", "a\0a", "z_3", "a", "z_4", "b", "z_10", "c"]);
        pair.check(&["DEL", "l"]);
        pair.check(&["RPUSH", "l", "1", "2", "3", "4", "10"]);
        pair.check(&["SORT", "l", "BY", "z_*", "ALPHA", "STORE", "d"]);
        pair.check(&["LRANGE", "d", "0", "-1"]);
        pair.check(&["SORT", "l", "GET", "z_\0*", "GET", "z_*\0", "GET", "h_*->\0f", "GET", "h_*->f\0"]);
    }
}

#[test]
fn a_long_list_is_sorted_by_other_keys() {
    const ELEMENTS: usize = 21_000;
    let mut pair = Pair::new(Protocol::Resp2);
    let numbers: Vec<String> = (0..ELEMENTS).map(|n| n.to_string()).collect();
    let weights: Vec<String> = (0..ELEMENTS).map(|n| (n * 7919 % 20_011).to_string()).collect();
    for (numbers, weights) in numbers.chunks(1_000).zip(weights.chunks(1_000)) {
        let mut words = vec!["RPUSH", "l"];
        words.extend(numbers.iter().map(String::as_str));
        pair.check(&words);
        let keys: Vec<String> = numbers.iter().map(|number| format!("w_{number}")).collect();
        let mut words = vec!["MSET"];
        keys.iter().zip(weights).for_each(|(key, weight)| words.extend([key.as_str(), weight.as_str()]));
        pair.check(&words);
    }
    for line in [
        "SORT l BY w_*",
        "SORT l BY w_* DESC LIMIT 100 50 GET # GET w_*",
        "SORT_RO l BY nosort GET w_* LIMIT 20000 10",
        "SORT l BY w_* STORE d",
        "LRANGE d 0 20",
        "LLEN d",
    ] {
        pair.check_line(line);
    }
    assert_eq!(pair.store.stats().tickets, 0);
}
