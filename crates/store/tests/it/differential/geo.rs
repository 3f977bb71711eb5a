//! Geo commands: edge cases, and large indexes.

use sluicegate_wire::resp::Protocol;

use super::Pair;
use super::zsets::check_rows;
use crate::Random;

const SCRIPT: &str = "
    GEOADD Sicily 13.361389 38.115556 Palermo 15.087269 37.502669 Catania
    GEOADD Sicily CH 13.361389 38.2 Palermo
    GEOADD Sicily NX CH 13.361389 38.1 Palermo
    GEOADD Sicily XX 13.361389 38.1 nobody
    GEOADD Sicily NX XX 13.361389 38.1 nobody
    GEOADD Sicily GT 13.361389 38.1 nobody
    GEOADD Sicily CH CH CH
    GEOADD Sicily 13.361389 38.1
    GEOADD Sicily 13.361389 38.1 a 1 2
    GEOADD Sicily 181 38.1 a
    GEOADD Sicily 13 -86 a
    GEOADD Sicily 1e300 0 a
    GEOADD Sicily x 38.1 a
    GEOADD Sicily 13 y a
    GEOADD Sicily 180 85.05112878 corner -180 -85.05112878 other 0 0 zero
    GEODIST Sicily Palermo Catania
    GEODIST Sicily Palermo Catania km
    GEODIST Sicily Palermo Catania MI
    GEODIST Sicily Palermo Catania ft
    GEODIST Sicily Palermo Catania parsec
    GEODIST Sicily Palermo Catania m m
    GEODIST Sicily Palermo Palermo
    GEODIST Sicily Palermo nobody
    GEODIST Sicily corner other
    GEODIST none a b
    GEODIST none a b parsec
    GEOHASH Sicily Palermo Catania nobody corner other zero
    GEOHASH Sicily
    GEOHASH none a
    GEOPOS Sicily Palermo Catania nobody corner other zero
    GEOPOS Sicily
    GEOPOS none a b
    GEORADIUS Sicily 15 37 200 km
    GEORADIUS Sicily 15 37 200 km WITHDIST WITHCOORD WITHHASH
    GEORADIUS Sicily 15 37 200 km DESC WITHDIST
    GEORADIUS Sicily 15 37 200 km COUNT 1
    GEORADIUS Sicily 15 37 200 km COUNT 1 ANY
    GEORADIUS Sicily 15 37 200 km ANY
    GEORADIUS Sicily 15 37 200 km COUNT 0
    GEORADIUS Sicily 15 37 200 km COUNT x
    GEORADIUS Sicily 15 37 -1 km
    GEORADIUS Sicily 15 37 x km
    GEORADIUS Sicily 15 37 1 parsec
    GEORADIUS Sicily 15 87 1 km
    GEORADIUS Sicily 15 37 200 km STORE to
    ZRANGE to 0 -1 WITHSCORES
    GEORADIUS Sicily 15 37 200 km STOREDIST to
    GEORADIUS Sicily 15 37 200 km STORE one STOREDIST to
    EXISTS one to
    GEORADIUS Sicily 15 37 200 km STORE to WITHDIST
    GEORADIUS Sicily 15 37 200 km STORE
    GEORADIUS Sicily 100 37 1 km STORE to
    EXISTS to
    GEORADIUS Sicily 15 37 200 km STORE Sicily2 COUNT 1
    GEORADIUS none 15 37 200 km STORE Sicily2
    EXISTS Sicily2
    GEORADIUS none 15 37 200 km
    GEORADIUS none 15 37 200 km junk
    GEORADIUS_RO Sicily 15 37 200 km STORE to
    GEORADIUS_RO Sicily 15 37 200 km ASC
    GEORADIUSBYMEMBER Sicily Palermo 200 km
    GEORADIUSBYMEMBER Sicily Palermo 200 km WITHDIST COUNT 5
    GEORADIUSBYMEMBER Sicily nobody 200 km
    GEORADIUSBYMEMBER none nobody x parsec
    GEORADIUSBYMEMBER none nobody x parsec junk
    GEORADIUSBYMEMBER none nobody x parsec STORE to
    GEORADIUSBYMEMBER Sicily Palermo 200 km STORE to
    GEORADIUSBYMEMBER_RO Sicily Palermo 200 km STORE to
    GEORADIUSBYMEMBER_RO Sicily Palermo 200 km
    GEOSEARCH Sicily FROMLONLAT 15 37 BYRADIUS 200 km ASC
    GEOSEARCH Sicily FROMLONLAT 15 37 BYBOX 400 400 km ASC WITHCOORD WITHDIST
    GEOSEARCH Sicily FROMMEMBER Palermo BYBOX 400 400 km WITHHASH
    GEOSEARCH Sicily FROMMEMBER nobody BYBOX 400 400 km
    GEOSEARCH Sicily FROMMEMBER Palermo FROMLONLAT 15 37 BYRADIUS 200 km
    GEOSEARCH Sicily FROMLONLAT 15 37 FROMMEMBER Palermo BYRADIUS 200 km
    GEOSEARCH Sicily FROMLONLAT 15 37 FROMLONLAT 14 37 BYRADIUS 200 km
    GEOSEARCH Sicily BYRADIUS 200 km ASC COUNT 5
    GEOSEARCH Sicily FROMMEMBER Palermo ASC DESC WITHDIST
    GEOSEARCH Sicily FROMMEMBER Palermo BYRADIUS 200 km BYBOX 1 1 km
    GEOSEARCH Sicily FROMMEMBER Palermo BYBOX 1 1 km BYRADIUS 200 km
    GEOSEARCH Sicily FROMMEMBER Palermo BYBOX -1 1 km
    GEOSEARCH Sicily FROMMEMBER Palermo BYBOX 1 -1 km
    GEOSEARCH Sicily FROMMEMBER Palermo BYBOX x 1 km
    GEOSEARCH Sicily FROMMEMBER Palermo BYBOX 1 x km
    GEOSEARCH Sicily FROMMEMBER Palermo BYBOX 1 1 parsec
    GEOSEARCH Sicily FROMMEMBER Palermo BYRADIUS 1
    GEOSEARCH Sicily FROMMEMBER Palermo BYRADIUS 200 km STORE to
    GEOSEARCH Sicily FROMMEMBER Palermo BYRADIUS 200 km STOREDIST
    GEOSEARCH none FROMMEMBER Palermo BYRADIUS 200 km
    GEOSEARCH none FROMMEMBER Palermo BYRADIUS 200 parsec
    GEOSEARCH none FROMMEMBER Palermo ASC DESC WITHDIST
    geosearch none BYRADIUS 1 km ASC DESC WITHDIST
    GEOSEARCHSTORE to Sicily FROMLONLAT 15 37 BYBOX 400 400 km ASC COUNT 3
    ZRANGE to 0 -1 WITHSCORES
    GEOSEARCHSTORE to Sicily FROMLONLAT 15 37 BYRADIUS 400 km STOREDIST
    GEOSEARCHSTORE to Sicily FROMLONLAT 15 37 BYRADIUS 400 km WITHDIST
    GEOSEARCHSTORE to none FROMLONLAT 15 37 BYRADIUS 400 km
    EXISTS to
    GEOSEARCHSTORE to Sicily FROMLONLAT 100 37 BYRADIUS 1 km
    SET str v
    GEOADD str 1 1 a
    GEOADD str 1 200 a
    GEODIST str a b
    GEOHASH str a
    GEOPOS str a
    GEORADIUS str x 1 1 km
    GEOSEARCH str FROMLONLAT 15 37 BYRADIUS 400 junk
    GEOSEARCHSTORE str Sicily FROMLONLAT 15 37 BYRADIUS 400 km
    TYPE str
    GEOSEARCHSTORE Sicily Sicily FROMLONLAT 15 37 BYRADIUS 20000 km
    ZCARD Sicily
";

fn script(protocol: Protocol) {
    let mut pair = Pair::new(protocol);
    for line in SCRIPT.lines().map(str::trim).filter(|line| !line.is_empty()) {
        pair.check_line(line);
    }
}

#[test]
fn edge_cases_are_answered_as_by_redis_in_resp2() {
    script(Protocol::Resp2);
}

#[test]
fn edge_cases_are_answered_as_by_redis_in_resp3() {
    script(Protocol::Resp3);
}

/// Random positions, and shapes of every size at random positions: the same members are returned in the same order.
#[test]
fn large_indexes_are_searched_as_by_redis() {
    let mut pair = Pair::new(Protocol::Resp2);
    let mut random = Random(7);
    let mut degrees = |limit: usize| format!("{:.6}", random.below(2_000_000 * limit) as f64 / 1e6 - limit as f64);
    for number in 0..1_500 {
        let (longitude, latitude) = (degrees(180), degrees(85));
        pair.check(&["GEOADD", "world", &longitude, &latitude, &format!("m{number}")]);
        pair.check(&["GEOADD", "city", &longitude[..5], &format!("48.{number:04}"), &format!("m{number}")]);
    }
    let mut random = Random(8);
    for _ in 0..500 {
        let key = random.pick(&["world", "city"]);
        let longitude = format!("{:.3}", random.below(360_000) as f64 / 1e3 - 180.0);
        let latitude = format!("{:.3}", random.below(170_000) as f64 / 1e3 - 85.0);
        let size = format!("{:.2}", 10_f64.powf(random.below(430) as f64 / 100.0));
        let other = format!("{:.2}", 10_f64.powf(random.below(430) as f64 / 100.0));
        let order = random.pick(&["ASC", "DESC", "WITHCOORD", "WITHHASH"]);
        let from = ["GEOSEARCH", key, "FROMLONLAT", &longitude, &latitude];
        pair.check(&[&from[..], &["BYRADIUS", &size, "km", "WITHDIST", order]].concat());
        pair.check(&[&from[..], &["BYBOX", &size, &other, "km", "WITHDIST"]].concat());
        pair.check(&[&from[..], &["BYBOX", &size, &other, "mi", "COUNT", "7", order]].concat());
        pair.check(&[&from[..], &["BYRADIUS", &size, "km", "COUNT", "5", "ANY"]].concat());
    }
    for number in (0..1_500).step_by(13) {
        let member = format!("m{number}");
        pair.check(&["GEOPOS", "world", &member]);
        pair.check(&["GEOHASH", "world", &member]);
        pair.check(&["GEODIST", "world", &member, "m7", "mi"]);
    }
}

/// The rows of the catalogue are those of Redis 7.0.
#[test]
fn the_catalogue_has_the_rows_of_redis() {
    check_rows(&[
        "geoadd",
        "geodist",
        "geohash",
        "geopos",
        "georadius",
        "georadius_ro",
        "georadiusbymember",
        "georadiusbymember_ro",
        "geosearch",
        "geosearchstore",
    ]);
}
