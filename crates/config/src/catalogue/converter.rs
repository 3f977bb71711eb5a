//! Converters (HAProxy configuration manual 7.3.1) and the store's.

use std::collections::HashMap;
use std::sync::OnceLock;

use sluicegate_pattern::{Method, ValueType};

use super::counter::{CounterFigure, table_rows};
use super::{ArgKind, Output};

/// The type of a map's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapGives {
    /// The value, typed.
    Value(ValueType),
    /// The value with the groups of the regular expression in it (`map_regm`).
    Expanded,
    /// The key that matched (`map_*_key`).
    Key,
}

/// Declares the converters from their rows: one variant for each row, and the variants that many rows share.
macro_rules! converters {
    ($($row:ident($name:literal, Converter::$variant:ident, $($rest:expr),+ $(,)?)),+ $(,)?) => {
        /// A converter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // each is named as in the manual; the catalogue's rows hold the documentation
        pub enum Converter {
            $($variant,)+
            /// The `map` converters: the match method, and the type of the result.
            Map(Method, MapGives),
            /// A datum of a stick table's entry.
            Table(CounterFigure),
        }

        static ROWS: &[ConverterRow] = &[$($row($name, Converter::$variant, $($rest),+)),+];
    };
}

/// A converter's row.
#[derive(Clone, Copy)]
pub(crate) struct ConverterRow {
    pub(crate) name: &'static str,
    pub(crate) converter: Converter,
    pub(crate) args: &'static [ArgKind],
    /// The number of required arguments.
    pub(crate) required: usize,
    /// The type to which the sample is cast.
    pub(crate) input: Output,
    /// The type of the result; [`Output::Any`] for the sample itself.
    pub(crate) output: Output,
    /// Whether it asks a store, so it may wait.
    pub(crate) waits: bool,
    pub(crate) docs: &'static str,
}

impl ConverterRow {
    pub(crate) fn all() -> &'static [ConverterRow] {
        static ALL: OnceLock<Vec<ConverterRow>> = OnceLock::new();
        ALL.get_or_init(|| {
            let mut rows = [ROWS, MAPS].concat();
            table_rows(&mut rows);
            rows
        })
    }

    /// Returns the row of a name.
    pub(crate) fn find(name: &str) -> Option<&'static ConverterRow> {
        static INDEX: OnceLock<HashMap<&'static str, &'static ConverterRow>> = OnceLock::new();
        INDEX.get_or_init(|| ConverterRow::all().iter().map(|row| (row.name, row)).collect()).get(name).copied()
    }

    /// Returns the row of a converter.
    pub(crate) fn of(converter: Converter) -> &'static ConverterRow {
        static INDEX: OnceLock<HashMap<Converter, &'static ConverterRow>> = OnceLock::new();
        // `map` is another name of `map_str`; the first one is the row.
        let index = INDEX.get_or_init(|| ConverterRow::all().iter().rev().map(|row| (row.converter, row)).collect());
        index.get(&converter).copied().expect("every converter has a row, which a test asserts")
    }
}

/// Returns the converter by the name that scripts use, in which `.`, `-` and `+` are `_`.
pub fn converter_for_scripts(name: &str) -> Option<Converter> {
    static INDEX: OnceLock<HashMap<String, Converter>> = OnceLock::new();
    let index = INDEX.get_or_init(|| {
        // A script calls its own functions itself.
        let rows = ConverterRow::all().iter().filter(|row| row.converter != Converter::Lua);
        rows.map(|row| (row.name.replace(['-', '.', '+'], "_"), row.converter)).collect()
    });
    index.get(name).copied()
}

use ArgKind as A;

converters![
    row(
        "add",
        Converter::Add,
        &[A::Operand],
        1,
        Output::Int,
        Output::Int,
        "The integer plus another, which may be a variable; saturates.",
    ),
    row("sub", Converter::Sub, &[A::Operand], 1, Output::Int, Output::Int, "The integer less another; saturates."),
    row("mul", Converter::Mul, &[A::Operand], 1, Output::Int, Output::Int, "The integer times another; saturates."),
    row(
        "div",
        Converter::Div,
        &[A::Operand],
        1,
        Output::Int,
        Output::Int,
        "The integer divided by another; by 0 it is the greatest integer.",
    ),
    row(
        "mod",
        Converter::Mod,
        &[A::Operand],
        1,
        Output::Int,
        Output::Int,
        "The remainder of the division by another; by 0 it is 0.",
    ),
    row("and", Converter::And, &[A::Operand], 1, Output::Int, Output::Int, "Bitwise and."),
    row("or", Converter::Or, &[A::Operand], 1, Output::Int, Output::Int, "Bitwise or."),
    row("xor", Converter::Xor, &[A::Operand], 1, Output::Int, Output::Int, "Bitwise exclusive or."),
    row("neg", Converter::Neg, &[], 0, Output::Int, Output::Int, "The integer with the opposite sign; saturates."),
    row("cpl", Converter::Cpl, &[], 0, Output::Int, Output::Int, "The integer with every bit flipped."),
    row("bool", Converter::Bool, &[], 0, Output::Int, Output::Bool, "True if the integer is not 0."),
    row("not", Converter::Not, &[], 0, Output::Int, Output::Bool, "True if the integer is 0."),
    row("odd", Converter::Odd, &[], 0, Output::Int, Output::Bool, "True if the integer is odd."),
    row("even", Converter::Even, &[], 0, Output::Int, Output::Bool, "True if the integer is even."),
    row("lower", Converter::Lower, &[], 0, Output::Str, Output::Str, "The text in lower case (ASCII)."),
    row("upper", Converter::Upper, &[], 0, Output::Str, Output::Str, "The text in upper case (ASCII)."),
    row(
        "concat",
        Converter::Concat,
        &[A::Str, A::Var, A::Str],
        1,
        Output::Str,
        Output::Str,
        "The text followed by a string, a variable and another string.",
    ),
    row(
        "add_item",
        Converter::AddItem,
        &[A::Str, A::Var, A::Str],
        1,
        Output::Str,
        Output::Str,
        "The text, then a delimiter (unless the text or the addition is empty), a variable and another string.",
    ),
    row(
        "field",
        Converter::Field,
        &[A::Int, A::Str, A::Int],
        2,
        Output::Str,
        Output::Str,
        "The text's nth field (negative: counted from the end) between any of the delimiters, and as many fields as \
         given; 0: all the rest.",
    ),
    row(
        "word",
        Converter::Word,
        &[A::Int, A::Str, A::Int],
        2,
        Output::Str,
        Output::Str,
        "The text's nth word: like field, but adjacent delimiters count as one.",
    ),
    row(
        "bytes",
        Converter::Bytes,
        &[A::Operand, A::Operand],
        1,
        Output::Bin,
        Output::Bin,
        "The bytes from an offset on, at most the given number; both may be variables.",
    ),
    row("length", Converter::Length, &[], 0, Output::Str, Output::Int, "The text's length in bytes."),
    row(
        "ltrim",
        Converter::Ltrim,
        &[A::Str],
        1,
        Output::Str,
        Output::Str,
        "The text without any of these characters at its start.",
    ),
    row(
        "rtrim",
        Converter::Rtrim,
        &[A::Str],
        1,
        Output::Str,
        Output::Str,
        "The text without any of these characters at its end.",
    ),
    row(
        "cut_crlf",
        Converter::CutCrlf,
        &[],
        0,
        Output::Str,
        Output::Str,
        "The text up to its first carriage return or line feed.",
    ),
    row(
        "strcmp",
        Converter::Strcmp,
        &[A::Var],
        1,
        Output::Str,
        Output::Int,
        "Negative, 0 or positive if the text sorts before, equals or sorts after a variable's text.",
    ),
    row(
        "secure_memcmp",
        Converter::SecureMemcmp,
        &[A::Var],
        1,
        Output::Bin,
        Output::Bool,
        "True if the bytes equal a variable's, compared in constant time.",
    ),
    row(
        "iif",
        Converter::Iif,
        &[A::Str, A::Str],
        2,
        Output::Bool,
        Output::Str,
        "The first string if the sample is true, else the second.",
    ),
    row(
        "language",
        Converter::Language,
        &[A::Str, A::Str],
        1,
        Output::Str,
        Output::Str,
        "The listed language (`de;en`) that an Accept-Language header prefers, or a default.",
    ),
    row(
        "param",
        Converter::Param,
        &[A::Str, A::Str],
        0,
        Output::Str,
        Output::Str,
        "The value of a parameter in a query string, by default of the one without a name; the delimiter is `&` by default.",
    ),
    row(
        "regsub",
        Converter::Regsub,
        &[A::Str, A::Str, A::Str],
        2,
        Output::Str,
        Output::Str,
        "The text with the first match of a regular expression replaced, or every match with the flag `g`; `\\1` is a \
         group. Flags: `g`, `i`.",
    ),
    row(
        "crc32",
        Converter::Crc32,
        &[A::Int],
        0,
        Output::Bin,
        Output::Int,
        "CRC-32 of the bytes; with 1 the result passes an avalanche function.",
    ),
    row(
        "crc32c",
        Converter::Crc32c,
        &[A::Int],
        0,
        Output::Bin,
        Output::Int,
        "CRC-32C (Castagnoli) of the bytes; 1: with avalanche.",
    ),
    row(
        "djb2",
        Converter::Djb2,
        &[A::Int],
        0,
        Output::Bin,
        Output::Int,
        "The hash DJB2 of the bytes; 1: with \
     avalanche.",
    ),
    row(
        "sdbm",
        Converter::Sdbm,
        &[A::Int],
        0,
        Output::Bin,
        Output::Int,
        "The hash SDBM of the bytes; 1: with \
     avalanche.",
    ),
    row("wt6", Converter::Wt6, &[A::Int], 0, Output::Bin, Output::Int, "The hash WT6 of the bytes; 1: with avalanche."),
    row("xxh3", Converter::Xxh3, &[A::Int], 0, Output::Bin, Output::Int, "XXH3 of the bytes (64 bits) with a seed."),
    row("xxh32", Converter::Xxh32, &[A::Int], 0, Output::Bin, Output::Int, "XXH32 of the bytes with a seed."),
    row("xxh64", Converter::Xxh64, &[A::Int], 0, Output::Bin, Output::Int, "XXH64 of the bytes with a seed."),
    row("sha1", Converter::Sha1, &[], 0, Output::Bin, Output::Bin, "SHA-1 of the bytes."),
    row(
        "sha2",
        Converter::Sha2,
        &[A::Int],
        0,
        Output::Bin,
        Output::Bin,
        "SHA-2 of the bytes with 224, 256 (default), 384 or 512 bits.",
    ),
    row(
        "digest",
        Converter::Digest,
        &[A::Str],
        1,
        Output::Bin,
        Output::Bin,
        "The digest of the bytes: `md5`, `sha1`, `sha224`, `sha256`, `sha384`, `sha512`.",
    ),
    row(
        "hmac",
        Converter::Hmac,
        &[A::Str, A::Str],
        2,
        Output::Bin,
        Output::Bin,
        "The keyed digest (HMAC) of the bytes; the key is in base64, or a variable that contains it.",
    ),
    row("base64", Converter::Base64, &[], 0, Output::Bin, Output::Str, "The bytes in base64."),
    row("b64dec", Converter::B64dec, &[], 0, Output::Str, Output::Bin, "The bytes decoded from base64."),
    row("ub64enc", Converter::Ub64enc, &[], 0, Output::Bin, Output::Str, "The bytes in base64url, without padding."),
    row("ub64dec", Converter::Ub64dec, &[], 0, Output::Str, Output::Bin, "The bytes decoded from base64url."),
    row("hex", Converter::Hex, &[], 0, Output::Bin, Output::Str, "The bytes in upper-case hexadecimal."),
    row("hex2i", Converter::Hex2i, &[], 0, Output::Str, Output::Int, "The integer decoded from hexadecimal digits."),
    row("base2", Converter::Base2, &[], 0, Output::Bin, Output::Str, "The bytes in binary digits, eight per byte."),
    row(
        "be2dec",
        Converter::Be2dec,
        &[A::Str, A::Int, A::Int],
        2,
        Output::Bin,
        Output::Str,
        "Chunks of the bytes as decimal big-endian integers, with a separator in between; 1 drops an incomplete chunk.",
    ),
    row(
        "le2dec",
        Converter::Le2dec,
        &[A::Str, A::Int, A::Int],
        2,
        Output::Bin,
        Output::Str,
        "As be2dec, little-endian.",
    ),
    row(
        "be2hex",
        Converter::Be2hex,
        &[A::Str, A::Int, A::Int],
        0,
        Output::Bin,
        Output::Str,
        "The bytes in hexadecimal with a separator between chunks; 1 drops an incomplete chunk.",
    ),
    row(
        "htonl",
        Converter::Htonl,
        &[],
        0,
        Output::Int,
        Output::Bin,
        "The integer's low 32 bits as four bytes, big-endian.",
    ),
    row(
        "url_dec",
        Converter::UrlDec,
        &[A::Int],
        0,
        Output::Str,
        Output::Str,
        "The text with `%XX` decoded; after a `?`, or everywhere if the argument is not 0, `+` becomes a space.",
    ),
    row(
        "url_enc",
        Converter::UrlEnc,
        &[A::Str],
        0,
        Output::Str,
        Output::Str,
        "The text with all bytes but letters, digits and `-._~` encoded as `%XX`.",
    ),
    row(
        "json",
        Converter::Json,
        &[A::Str],
        0,
        Output::Str,
        Output::Str,
        "The text escaped for a JSON string; the input is `ascii` (default), `utf8`, `utf8s`, `utf8p` or `utf8ps`.",
    ),
    row(
        "json_query",
        Converter::JsonQuery,
        &[A::Str, A::Str],
        1,
        Output::Str,
        Output::Str,
        "The string, number, boolean or array at a JSON path (`$.a.b[0]`; what is no path finds nothing); `int` converts a number to an integer.",
    ),
    row(
        "jwt_header_query",
        Converter::JwtHeaderQuery,
        &[A::Str, A::Str],
        0,
        Output::Bin,
        Output::Str,
        "The header of a JSON web token, or the value at a JSON path in it. The signature is not verified.",
    ),
    row(
        "jwt_payload_query",
        Converter::JwtPayloadQuery,
        &[A::Str, A::Str],
        0,
        Output::Bin,
        Output::Str,
        "The payload of a JSON web token, or the value at a JSON path in it. The signature is not verified.",
    ),
    row(
        "ipmask",
        Converter::Ipmask,
        &[A::Mask4, A::Mask6],
        1,
        Output::Ip,
        Output::Ip,
        "The network of an address; without a mask for IPv6, an IPv6 address has no result.",
    ),
    row(
        "host_only",
        Converter::HostOnly,
        &[],
        0,
        Output::Str,
        Output::Str,
        "A Host header's value without its port, in lower case.",
    ),
    row(
        "port_only",
        Converter::PortOnly,
        &[],
        0,
        Output::Str,
        Output::Int,
        "The port of a Host header's value, 0 if there is none.",
    ),
    row(
        "x509_v_err_str",
        Converter::X509VErrStr,
        &[],
        0,
        Output::Int,
        Output::Str,
        "The name of a verification error (X509_V_ERR_…) by its number.",
    ),
    row(
        "http_date",
        Converter::HttpDate,
        &[A::Int, A::DateUnit],
        0,
        Output::Int,
        Output::Str,
        "A date in the format of HTTP header fields, after adding an offset; the unit is `s` (default), `ms` or `us`.",
    ),
    row(
        "ltime",
        Converter::Ltime,
        &[A::Str, A::Int],
        1,
        Output::Int,
        Output::Str,
        "A date in seconds, formatted in local time by strftime, after adding an offset in seconds.",
    ),
    row("utime", Converter::Utime, &[A::Str, A::Int], 1, Output::Int, Output::Str, "As ltime, in UTC."),
    row(
        "ms_ltime",
        Converter::MsLtime,
        &[A::Str, A::Int],
        1,
        Output::Int,
        Output::Str,
        "As ltime, from milliseconds; `%N` is the fraction in nine digits, `%3N` in three.",
    ),
    row("ms_utime", Converter::MsUtime, &[A::Str, A::Int], 1, Output::Int, Output::Str, "As ms_ltime, in UTC."),
    row(
        "us_ltime",
        Converter::UsLtime,
        &[A::Str, A::Int],
        1,
        Output::Int,
        Output::Str,
        "As ms_ltime, from microseconds.",
    ),
    row("us_utime", Converter::UsUtime, &[A::Str, A::Int], 1, Output::Int, Output::Str, "As us_ltime, in UTC."),
    row(
        "has_ctl",
        Converter::HasCtl,
        &[A::Str],
        0,
        Output::Bin,
        Output::Bool,
        "True if the bytes include a control character: any except tab, or `any`, or `http` for NUL, CR and LF, or \
         those of a bit mask (bit 32 is DEL).",
    ),
    row("reverse", Converter::Reverse, &[], 0, Output::Str, Output::Str, "The text with its bytes in reverse order."),
    row(
        "reverse_dom",
        Converter::ReverseDom,
        &[],
        0,
        Output::Str,
        Output::Str,
        "A domain name with its labels in reverse order (`com.example.www`), for prefix matches by domain; one final \
         dot is ignored, and a name with an empty label has no result.",
    ),
    row(
        "aes_gcm_enc",
        Converter::AesGcmEnc,
        &[A::Int, A::Str, A::Str, A::Str],
        4,
        Output::Bin,
        Output::Bin,
        "The bytes encrypted with AES-GCM: the key size in bits (128, 192, 256), nonce and key in base64 or in \
         variables that contain it, and the variable that receives the tag in base64.",
    ),
    row(
        "aes_gcm_dec",
        Converter::AesGcmDec,
        &[A::Int, A::Str, A::Str, A::Str],
        4,
        Output::Bin,
        Output::Bin,
        "The bytes decrypted with AES-GCM: the key size in bits (128, 192, 256), nonce, key and tag in base64 or in \
         variables that contain it. No result if the tag (12 to 16 bytes) does not match.",
    ),
    row(
        "jwt_verify",
        Converter::JwtVerify,
        &[A::Str, A::Str],
        2,
        Output::Bin,
        Output::Int,
        "The result of verifying the signature of a JSON web token: 1 valid, 0 invalid, or negative for an unknown \
         algorithm (-1), a malformed token (-3) or an unknown key (-5). The algorithm (`HS256`, `RS256`, `PS256`, \
         `ES256`, each also with 384 and 512, or `none`) and the key, which is a secret or the file of a public key \
         (PEM), may be variables.",
    ),
    row(
        "le2hex",
        Converter::Le2hex,
        &[A::Str, A::Int, A::Int],
        0,
        Output::Bin,
        Output::Str,
        "As be2hex, little-endian.",
    ),
    row(
        "date",
        Converter::HttpToDate,
        &[],
        0,
        Output::Str,
        Output::Int,
        "The time since 1970 in seconds, parsed from a date in any of the three formats of HTTP header fields.",
    ),
    row(
        "fix_is_valid",
        Converter::FixIsValid,
        &[],
        0,
        Output::Bin,
        Output::Bool,
        "True if the bytes are a well-formed message of FIX 4.0 to 4.4 or FIXT 1.1 with correct length and checksum; \
         no result while the message is incomplete.",
    ),
    row(
        "fix_tag_value",
        Converter::FixTagValue,
        &[A::Str],
        1,
        Output::Bin,
        Output::Bin,
        "The value of a FIX message's first field with this tag: a number, or `BeginString`, `BodyLength`, `MsgType`, `SenderCompID`, `TargetCompID`, `CheckSum`.",
    ),
    row(
        "mqtt_is_valid",
        Converter::MqttIsValid,
        &[],
        0,
        Output::Bin,
        Output::Bool,
        "True if the bytes are a valid CONNECT or CONNACK packet of MQTT 3.1, 3.1.1 or 5.0; no result while the packet \
         is incomplete.",
    ),
    row(
        "mqtt_field_value",
        Converter::MqttFieldValue,
        &[A::Str, A::Str],
        2,
        Output::Bin,
        Output::Str,
        "A field of an MQTT packet: the packet's type by name or number, and the field's name or a property's number.",
    ),
    row(
        "protobuf",
        Converter::Protobuf,
        &[A::Str, A::Str],
        1,
        Output::Bin,
        Output::Bin,
        "A field of a Protocol Buffers message, addressed by its path of field numbers (`1.3`), as bytes or as the \
         given type (`int32`, `uint32`, `sint32`, `int64`, `uint64`, `sint64`, `bool`, `enum`, `fixed32`, `sfixed32`, \
         `float`, `fixed64`, `sfixed64`, `double`).",
    ),
    row(
        "ungrpc",
        Converter::Ungrpc,
        &[A::Str, A::Str],
        1,
        Output::Bin,
        Output::Bin,
        "As protobuf, for the messages in the body of a gRPC request or response.",
    ),
    row(
        "rfc7239_is_valid",
        Converter::Rfc7239IsValid,
        &[],
        0,
        Output::Str,
        Output::Bool,
        "True if the text is one valid value of the header field Forwarded (RFC 7239).",
    ),
    row(
        "rfc7239_field",
        Converter::Rfc7239Field,
        &[A::Str],
        1,
        Output::Str,
        Output::Str,
        "A parameter of a Forwarded value: `for`, `by`, `host` or `proto`; no result if the value is invalid or lacks \
         it.",
    ),
    row(
        "rfc7239_n2nn",
        Converter::Rfc7239N2nn,
        &[],
        0,
        Output::Str,
        Output::Any,
        "The name of a Forwarded value's node (`for`, `by`): an address, `unknown`, or an obfuscated name with its \
         `_`.",
    ),
    row(
        "rfc7239_n2np",
        Converter::Rfc7239N2np,
        &[],
        0,
        Output::Str,
        Output::Any,
        "The port of a Forwarded value's node: a number, or an obfuscated one with its `_`; no result without one.",
    ),
    row(
        "rfc7239_nn",
        Converter::Rfc7239Nn,
        &[],
        0,
        Output::Any,
        Output::Str,
        "The sample as the name of a Forwarded value's node: an IPv6 address in brackets, a text prefixed with `_`, an \
         empty text as `unknown`.",
    ),
    row(
        "rfc7239_np",
        Converter::Rfc7239Np,
        &[],
        0,
        Output::Any,
        Output::Str,
        "The sample as the port of a Forwarded value's node: a number unchanged, a text prefixed with `_`.",
    ),
    row(
        "capture-req",
        Converter::CaptureReq,
        &[A::Int],
        1,
        Output::Str,
        Output::Str,
        "Copies the text to a capture slot of the request, truncated to its length, and returns it; no result without \
         the slot.",
    ),
    row(
        "capture-res",
        Converter::CaptureRes,
        &[A::Int],
        1,
        Output::Str,
        Output::Str,
        "Copies the text to a capture slot of the response, truncated to its length, and returns it; no result without \
         the slot.",
    ),
    row(
        "nbsrv",
        Converter::Nbsrv,
        &[],
        0,
        Output::Str,
        Output::Int,
        "The number of usable servers of the backend named by the text; no result if it does not exist.",
    ),
    row(
        "srv_queue",
        Converter::SrvQueue,
        &[],
        0,
        Output::Str,
        Output::Int,
        "The number of requests queued for the server named by the text, `BACKEND/SERVER` or one of the section's own; \
         no result if it does not exist.",
    ),
    row(
        "when",
        Converter::When,
        &[A::Str, A::Str],
        1,
        Output::Any,
        Output::Any,
        "Returns the sample if a condition holds: `error`, `normal`, `forwarded`, `toapplet`, `processed`, `stopping`, \
         or `acl` with the name of an ACL; a leading `!` negates. Otherwise no result.",
    ),
    row(
        "debug",
        Converter::Debug,
        &[A::Str, A::Str],
        0,
        Output::Any,
        Output::Any,
        "Writes a prefix, the sample's type and the sample to a ring (`buf0` by default), `stderr` or `stdout`, and \
         returns it.",
    ),
    row(
        "set-var",
        Converter::SetVar,
        &[A::Var, A::Str, A::Str, A::Str, A::Str],
        1,
        Output::Any,
        Output::Any,
        "Sets a variable and returns the sample if all conditions hold: `ifexists`, `ifnotexists`, `ifempty`, \
         `ifnotempty`, `ifset`, `ifnotset`, `ifgt`, `iflt`. Otherwise no result.",
    ),
    row(
        "unset-var",
        Converter::UnsetVar,
        &[A::Var],
        1,
        Output::Any,
        Output::Any,
        "Unsets a variable and returns the sample.",
    ),
    asks(
        "store_get",
        Converter::StoreGet,
        &[A::Store],
        1,
        Output::Str,
        Output::Str,
        "The string stored under the text as key; no result if there is none. A failure sets txn.store_err.",
    ),
    asks(
        "store_incr",
        Converter::StoreIncr,
        &[A::Store, A::Int],
        1,
        Output::Str,
        Output::Int,
        "Adds 1, or the given number, to the integer stored under the text as key, and returns the sum. A key \
         that it creates never expires unless EXPIRE follows.",
    ),
    asks(
        "store_hget",
        Converter::StoreHget,
        &[A::Store, A::Str],
        2,
        Output::Str,
        Output::Str,
        "The value of a field, the second argument, of the hash stored under the text as key; no result if there \
         is none.",
    ),
    asks(
        "store_call",
        Converter::StoreCall,
        &[A::Store, A::Str, A::Str, A::Str, A::Str, A::Str, A::Str, A::Str],
        2,
        Output::Str,
        Output::Str,
        "The reply to a command of a store, the second argument; the text is the command's first argument, \
         followed by those of the converter. A reply with several values is a failure.",
    ),
    row(
        "lua.NAME",
        Converter::Lua,
        &[A::Str, A::Str, A::Str, A::Str, A::Str],
        0,
        Output::Str,
        Output::Str,
        "The result of a script's function, registered under this name with core.register_converters, for the \
         text. The function may wait in rules only.",
    ),
];

static MAPS: &[ConverterRow] = &[
    map(
        "map",
        Method::Str,
        VALUE,
        "The value of the text in a map file, or a default. The methods: `str` the whole text, `beg` its longest \
         prefix, `end`, `sub`, `dir`, `dom`, `reg` the first match in the file's order, `int` a number or range, `ip` \
         the longest prefix; with `_int` or `_ip` the value is typed, with `_key` the result is the key itself.",
    ),
    map("map_str", Method::Str, VALUE, "See map."),
    map("map_str_int", Method::Str, INTEGER, "See map."),
    map("map_str_ip", Method::Str, ADDRESS, "See map."),
    map("map_str_key", Method::Str, MapGives::Key, "See map."),
    map("map_beg", Method::Beg, VALUE, "See map."),
    map("map_beg_int", Method::Beg, INTEGER, "See map."),
    map("map_beg_ip", Method::Beg, ADDRESS, "See map."),
    map("map_beg_key", Method::Beg, MapGives::Key, "See map."),
    map("map_sub", Method::Sub, VALUE, "See map."),
    map("map_sub_int", Method::Sub, INTEGER, "See map."),
    map("map_sub_ip", Method::Sub, ADDRESS, "See map."),
    map("map_sub_key", Method::Sub, MapGives::Key, "See map."),
    map("map_dir", Method::Dir, VALUE, "See map."),
    map("map_dir_int", Method::Dir, INTEGER, "See map."),
    map("map_dir_ip", Method::Dir, ADDRESS, "See map."),
    map("map_dir_key", Method::Dir, MapGives::Key, "See map."),
    map("map_dom", Method::Dom, VALUE, "See map."),
    map("map_dom_int", Method::Dom, INTEGER, "See map."),
    map("map_dom_ip", Method::Dom, ADDRESS, "See map."),
    map("map_dom_key", Method::Dom, MapGives::Key, "See map."),
    map("map_end", Method::End, VALUE, "See map."),
    map("map_end_int", Method::End, INTEGER, "See map."),
    map("map_end_ip", Method::End, ADDRESS, "See map."),
    map("map_end_key", Method::End, MapGives::Key, "See map."),
    map("map_reg", Method::Reg, VALUE, "See map."),
    map("map_reg_int", Method::Reg, INTEGER, "See map."),
    map("map_reg_ip", Method::Reg, ADDRESS, "See map."),
    map("map_reg_key", Method::Reg, MapGives::Key, "See map."),
    map("map_int", Method::Int, VALUE, "See map."),
    map("map_int_int", Method::Int, INTEGER, "See map."),
    map("map_int_ip", Method::Int, ADDRESS, "See map."),
    map("map_int_key", Method::Int, MapGives::Key, "See map."),
    map("map_ip", Method::Ip, VALUE, "See map."),
    map("map_ip_int", Method::Ip, INTEGER, "See map."),
    map("map_ip_ip", Method::Ip, ADDRESS, "See map."),
    map("map_ip_key", Method::Ip, MapGives::Key, "See map."),
    map("map_regm", Method::Reg, MapGives::Expanded, "As map_reg; `\\1` in the value is a group of the match."),
];

const VALUE: MapGives = MapGives::Value(ValueType::Str);
const INTEGER: MapGives = MapGives::Value(ValueType::Int);
const ADDRESS: MapGives = MapGives::Value(ValueType::Ip);

const fn row(
    name: &'static str,
    converter: Converter,
    args: &'static [ArgKind],
    required: usize,
    input: Output,
    output: Output,
    docs: &'static str,
) -> ConverterRow {
    ConverterRow { name, converter, args, required, input, output, waits: false, docs }
}

/// A converter that asks a store, so it may wait.
const fn asks(
    name: &'static str,
    converter: Converter,
    args: &'static [ArgKind],
    required: usize,
    input: Output,
    output: Output,
    docs: &'static str,
) -> ConverterRow {
    ConverterRow { name, converter, args, required, input, output, waits: true, docs }
}

const fn map(name: &'static str, method: Method, gives: MapGives, docs: &'static str) -> ConverterRow {
    let input = match method {
        Method::Int => Output::Int,
        Method::Ip => Output::Ip,
        _ => Output::Str,
    };
    let output = match gives {
        MapGives::Value(ValueType::Int) => Output::Int,
        MapGives::Value(ValueType::Ip) => Output::Ip,
        _ => Output::Str,
    };
    row(name, Converter::Map(method, gives), &[A::Str, A::Str], 1, input, output, docs)
}
