//! Normalisation of transcripts, so that they can be compared.

/// Returns what one side received, as text: field names in lower case, a chunked body as `<data>` with its trailers,
/// line ends as such. Bytes that are not valid messages remain as received.
pub(crate) fn normalise(mut bytes: &[u8], no_bodies: bool) -> String {
    let mut text = String::new();
    while !bytes.is_empty() {
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            push(&mut text, bytes);
            text.push_str("[no end of head]\n");
            break;
        };
        let head = self::text(&bytes[..end]);
        bytes = &bytes[end + 4..];
        let mut lines = head.split("\r\n");
        let start = lines.next().unwrap_or_default();
        text.push_str(start);
        text.push('\n');
        let mut length = None;
        let mut chunked = false;
        for line in lines {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let name = name.to_ascii_lowercase();
            // haproxy 2.6 passes on the coding in the received case; later versions and this program write their own.
            let is_coding = name == "transfer-encoding";
            let value = if is_coding { value.to_ascii_lowercase() } else { value.to_owned() };
            text.push_str(&format!("{name}:{value}\n"));
            match name.as_str() {
                "content-length" => length = value.trim().parse::<usize>().ok(),
                "transfer-encoding" => chunked = value.trim().eq_ignore_ascii_case("chunked"),
                _ => {}
            }
        }
        text.push('\n');
        let status = start.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
        let is_response = status.is_some();
        if status == Some("101") || start.starts_with("CONNECT ") {
            push(&mut text, bytes);
            break;
        }
        if (is_response && no_bodies)
            || status.is_some_and(|code| code.starts_with('1') || matches!(code, "204" | "304"))
        {
            continue;
        }
        if chunked {
            bytes = dechunk(bytes, &mut text);
        } else if let Some(length) = length {
            let length = length.min(bytes.len());
            push(&mut text, &bytes[..length]);
            bytes = &bytes[length..];
        } else if is_response {
            push(&mut text, bytes);
            break;
        }
    }
    text
}

/// Returns bytes as text; bytes that are not UTF-8 are shown as numbers.
pub(crate) fn text(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// Adds bytes to a transcript; a long body is shown by its length and a checksum, so that transcripts stay readable.
fn push(text: &mut String, bytes: &[u8]) {
    if bytes.len() > 512 {
        let sum = bytes.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
        text.push_str(&format!("[{} bytes, sum {sum}]\n", bytes.len()));
    } else if !bytes.is_empty() {
        text.push_str(&self::text(bytes));
        text.push('\n');
    }
}

/// Appends a chunked body's data; returns what follows it.
fn dechunk<'a>(mut bytes: &'a [u8], text: &mut String) -> &'a [u8] {
    let mut data = Vec::new();
    let mut ending = "[unfinished]";
    while let Some((line, rest)) = line(bytes) {
        let Ok(size) = usize::from_str_radix(&line, 16) else {
            ending = "[bad chunk]";
            break;
        };
        bytes = rest;
        if size == 0 {
            ending = "";
            break;
        }
        if bytes.len() < size {
            data.extend_from_slice(bytes);
            bytes = &[];
            break;
        }
        data.extend_from_slice(&bytes[..size]);
        bytes = &bytes[(size + 2).min(bytes.len())..];
    }
    text.push('<');
    push(text, &data);
    text.push('>');
    text.push_str(ending);
    while ending.is_empty()
        && let Some((line, rest)) = line(bytes)
    {
        bytes = rest;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        text.push_str(&format!(" {}:{value}", name.to_ascii_lowercase()));
    }
    text.push('\n');
    bytes
}

fn line(bytes: &[u8]) -> Option<(String, &[u8])> {
    let end = bytes.windows(2).position(|window| window == b"\r\n")?;
    Some((String::from_utf8_lossy(&bytes[..end]).into_owned(), &bytes[end + 2..]))
}
