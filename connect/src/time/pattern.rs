//! Times by a pattern, read as Python's `strptime` reads them in its English locale.
//!
//! A pattern is checked where it is declared: each field occurs once, together they determine a
//! day, and no directive is ignored. All deliberate differences from Python refuse more: a pattern
//! needs a year, and UTC is the only zone known by name, because names of zones are not unique.

use crate::time::{days_of, month_days, DAY_US, FINER};

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const DAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
/// The number of letters in a name's short form.
const SHORT: usize = 3;

/// The pattern of a column's times.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pieces: Vec<Piece>,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// This character, in either case.
    Is(char),
    /// White space, at least some.
    Blank,
    /// A number in a range, with at most and at least this many digits. It may have a blank in
    /// place of its first digit.
    Number {
        field: Field,
        most: usize,
        least: usize,
        range: (i64, i64),
        padded: bool,
    },
    /// One of these names, or the beginning of one.
    Name {
        field: Field,
        names: &'static [&'static str],
        is_short: bool,
    },
    /// The digits of a fraction of a second, at most and at least this many.
    Fraction {
        most: usize,
        least: usize,
    },
    /// A point and such digits, or nothing.
    Point,
    Offset,
    /// The name of a zone: only those of UTC.
    Zone,
    /// Seconds since 1970.
    Epoch,
}

/// A part of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Year,
    ShortYear,
    Month,
    Day,
    DayOfYear,
    Hour,
    Hour12,
    HalfDay,
    Minute,
    Second,
    Fraction,
    Weekday,
    /// Weeks that begin on Sunday, and on Monday.
    SundayWeek,
    MondayWeek,
    IsoYear,
    IsoWeek,
    Offset,
    Zone,
    Epoch,
}

const FIELDS: usize = Field::Epoch as usize + 1;

/// The numbers in a text by their fields. Offsets and fractions are in microseconds.
type Found = [i64; FIELDS];

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// The reason why it is wrong.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let mut pieces = Vec::new();
        parse_into(text, &mut pieces)?;
        let pattern = Pattern { pieces, text: text.to_owned() };
        pattern.check()?;
        Ok(pattern)
    }

    fn has(&self, field: Field) -> bool {
        self.pieces.iter().any(|piece| piece.field() == Some(field))
    }

    /// Checks that the pattern determines one time, and nothing twice.
    fn check(&self) -> Result<(), String> {
        use Field as F;
        for (nth, piece) in self.pieces.iter().enumerate() {
            let is_same = |other: &Piece| other.field() == piece.field();
            if let Some(field) = piece.field().filter(|_| self.pieces[..nth].iter().any(is_same)) {
                return Err(format!("it has {} twice", field.shown()));
            }
        }
        let has = |field| self.has(field);
        // Each of these needs one of the others.
        for (field, needed) in [
            (F::Day, &[F::Month][..]),
            (F::Month, &[F::Year, F::ShortYear]),
            (F::DayOfYear, &[F::Year, F::ShortYear]),
            (F::SundayWeek, &[F::Year, F::ShortYear]),
            (F::SundayWeek, &[F::Weekday]),
            (F::MondayWeek, &[F::Year, F::ShortYear]),
            (F::MondayWeek, &[F::Weekday]),
            (F::IsoYear, &[F::IsoWeek]),
            (F::IsoWeek, &[F::IsoYear]),
            (F::IsoWeek, &[F::Weekday]),
            (F::Hour12, &[F::HalfDay]),
            (F::Minute, &[F::Hour, F::Hour12]),
            (F::Second, &[F::Minute]),
            (F::Fraction, &[F::Second, F::Epoch]),
        ] {
            if has(field) && !needed.iter().any(|other| has(*other)) {
                return Err(format!("it has {}, and not {}", field.shown(), needed[0].shown()));
            }
        }
        // At most one of each group may occur.
        for fields in [
            &[F::Year, F::ShortYear, F::IsoYear, F::Epoch][..],
            &[F::Month, F::DayOfYear, F::SundayWeek, F::MondayWeek, F::IsoWeek, F::Epoch],
            &[F::Hour, F::Hour12, F::Epoch],
            &[F::Offset, F::Zone],
        ] {
            let mut there = fields.iter().filter(|field| has(**field));
            if let (Some(one), Some(other)) = (there.next(), there.next()) {
                return Err(format!("it has both {} and {}", one.shown(), other.shown()));
            }
        }
        match [F::Year, F::ShortYear, F::IsoYear, F::Epoch].iter().any(|field| has(*field)) {
            true => Ok(()),
            false => Err("it has no year: %Y, or %y for two digits".into()),
        }
    }

    /// Returns the microseconds since 1970 from a text.
    ///
    /// # Errors
    /// The reason why it is not a time of this pattern.
    pub fn read(&self, text: &str) -> Result<i64, String> {
        let mut found = [0; FIELDS];
        match matches(&self.pieces, text, &mut found) {
            true => self.time(&found),
            false => Err(format!("it does not fit '{}', the column's format", self.text)),
        }
    }

    fn time(&self, found: &Found) -> Result<i64, String> {
        use Field as F;
        let get = |field: Field| found[field as usize];
        let fraction = get(F::Fraction);
        if fraction < 0 {
            return Err(FINER.into());
        }
        if self.has(F::Epoch) {
            let us = get(F::Epoch).checked_mul(1_000_000).and_then(|us| us.checked_add(fraction));
            return us.ok_or_else(|| "it is out of range".into());
        }
        let day = self.day(&get)?;
        let hour = match self.has(F::Hour12) {
            true => get(F::Hour12) % 12 + 12 * get(F::HalfDay),
            false => get(F::Hour),
        };
        let second = get(F::Second);
        if second > 59 {
            return Err("a minute has 60 seconds".into());
        }
        let seconds = (hour * 60 + get(F::Minute)) * 60 + second;
        Ok(day * DAY_US + seconds * 1_000_000 + fraction - get(F::Offset))
    }

    /// Returns the days since 1970.
    fn day(&self, get: &impl Fn(Field) -> i64) -> Result<i64, String> {
        use Field as F;
        if self.has(F::IsoYear) {
            let year = get(F::IsoYear);
            // The week with the first Thursday is the first.
            let fourth = days_of(year, 1, 4);
            let monday = fourth - weekday(fourth);
            let day = monday + 7 * (get(F::IsoWeek) - 1) + get(F::Weekday);
            let next = days_of(year + 1, 1, 4);
            return match day < next - weekday(next) {
                true => Ok(day),
                false => Err(format!("the year {year} has no week 53")),
            };
        }
        let year = match self.has(F::ShortYear) {
            // This is POSIX's rule.
            true if get(F::ShortYear) <= 68 => 2000 + get(F::ShortYear),
            true => 1900 + get(F::ShortYear),
            false => get(F::Year),
        };
        if year == 0 {
            return Err("there is no year 0".into());
        }
        let first = days_of(year, 1, 1);
        for (week, begins) in [(F::SundayWeek, 6), (F::MondayWeek, 0)] {
            if self.has(week) {
                let at = |day: i64| (day - begins).rem_euclid(7);
                let (of_first, nth) = (at(weekday(first)), at(get(F::Weekday)));
                // Days before the first such weekday are in week 0.
                return Ok(match get(week) {
                    0 => first + nth - of_first,
                    week => first + (7 - of_first) % 7 + 7 * (week - 1) + nth,
                });
            }
        }
        if self.has(F::DayOfYear) {
            let day = first + get(F::DayOfYear) - 1;
            return match day < days_of(year + 1, 1, 1) {
                true => Ok(day),
                false => Err(format!("the year {year} has 365 days")),
            };
        }
        let month = if self.has(F::Month) { get(F::Month) } else { 1 };
        let day = if self.has(F::Day) { get(F::Day) } else { 1 };
        match day <= month_days(year, month) {
            true => Ok(days_of(year, month, day)),
            false => Err(format!("the month has {} days", month_days(year, month))),
        }
    }
}

/// Returns the weekday of a day since 1970, which began on a Thursday; 0 is Monday.
fn weekday(day: i64) -> i64 {
    (day + 3).rem_euclid(7)
}

impl Piece {
    fn field(self) -> Option<Field> {
        match self {
            Piece::Is(_) | Piece::Blank => None,
            Piece::Number { field, .. } | Piece::Name { field, .. } => Some(field),
            Piece::Fraction { .. } | Piece::Point => Some(Field::Fraction),
            Piece::Offset => Some(Field::Offset),
            Piece::Zone => Some(Field::Zone),
            Piece::Epoch => Some(Field::Epoch),
        }
    }
}

impl Field {
    /// Returns the field as a pattern has it.
    fn shown(self) -> &'static str {
        match self {
            Field::Year => "a year (%Y)",
            Field::ShortYear => "a year of two digits (%y)",
            Field::Month => "a month (%m)",
            Field::Day => "a day (%d)",
            Field::DayOfYear => "a day of the year (%j)",
            Field::Hour => "an hour (%H)",
            Field::Hour12 => "an hour of twelve (%I)",
            Field::HalfDay => "AM or PM (%p)",
            Field::Minute => "a minute (%M)",
            Field::Second => "a second (%S)",
            Field::Fraction => "a fraction (%f)",
            Field::Weekday => "a day of the week (%a, %A, %u or %w)",
            Field::SundayWeek => "a week (%U)",
            Field::MondayWeek => "a week (%W)",
            Field::IsoYear => "a year of weeks (%G)",
            Field::IsoWeek => "a week (%V)",
            Field::Offset => "an offset (%z)",
            Field::Zone => "a zone (%Z)",
            Field::Epoch => "seconds since 1970 (%s)",
        }
    }
}

fn parse_into(text: &str, pieces: &mut Vec<Piece>) -> Result<(), String> {
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            match c.is_whitespace() {
                true => blank(pieces),
                false => pieces.push(Piece::Is(c)),
            }
            continue;
        }
        let rest = chars.as_str();
        let len = directive(rest, pieces)?;
        chars = rest[len..].chars();
    }
    Ok(())
}

/// Appends white space; any amount of it counts as one.
fn blank(pieces: &mut Vec<Piece>) {
    if pieces.last() != Some(&Piece::Blank) {
        pieces.push(Piece::Blank);
    }
}

/// Parses the directive after a `%`. Returns its length in bytes.
fn directive(text: &str, pieces: &mut Vec<Piece>) -> Result<usize, String> {
    use Field as F;
    // Fractions and offsets of other writers, which Python does not have.
    for (name, piece) in [
        (".f", Piece::Point),
        ("3f", Piece::Fraction { most: 3, least: 3 }),
        ("6f", Piece::Fraction { most: 6, least: 6 }),
        ("9f", Piece::Fraction { most: 9, least: 9 }),
        (".3f", Piece::Fraction { most: 3, least: 3 }),
        (".6f", Piece::Fraction { most: 6, least: 6 }),
        (".9f", Piece::Fraction { most: 9, least: 9 }),
        (":z", Piece::Offset),
        ("::z", Piece::Offset),
        ("#z", Piece::Offset),
    ] {
        if text.starts_with(name) {
            if name.starts_with('.') && piece != Piece::Point {
                pieces.push(Piece::Is('.'));
            }
            pieces.push(piece);
            return Ok(name.len());
        }
    }
    // A reader ignores how a writer pads a number.
    let plain = text.trim_start_matches(['-', '_', '0']);
    let filled = text.len() - plain.len();
    let Some(name) = plain.chars().next().filter(|_| filled <= 1) else {
        return Err(format!("%{text} is not a directive"));
    };
    let number =
        |field, most, least, range| Piece::Number { field, most, least, range, padded: false };
    let padded = |field, range| Piece::Number { field, most: 2, least: 1, range, padded: true };
    let piece = match name {
        'Y' => number(F::Year, 4, 4, (0, 9999)),
        'y' => number(F::ShortYear, 2, 2, (0, 99)),
        'm' => number(F::Month, 2, 1, (1, 12)),
        'd' | 'e' => padded(F::Day, (1, 31)),
        'j' => number(F::DayOfYear, 3, 1, (1, 366)),
        'H' => number(F::Hour, 2, 1, (0, 23)),
        'k' => padded(F::Hour, (0, 23)),
        'I' => number(F::Hour12, 2, 1, (1, 12)),
        'l' => padded(F::Hour12, (1, 12)),
        'M' => number(F::Minute, 2, 1, (0, 59)),
        'S' => number(F::Second, 2, 1, (0, 61)),
        'U' => number(F::SundayWeek, 2, 1, (0, 53)),
        'W' => number(F::MondayWeek, 2, 1, (0, 53)),
        'G' => number(F::IsoYear, 4, 4, (1, 9999)),
        'V' => number(F::IsoWeek, 2, 1, (1, 53)),
        'w' => number(F::Weekday, 1, 1, (0, 6)),
        'u' => number(F::Weekday, 1, 1, (1, 7)),
        'b' | 'h' => Piece::Name { field: F::Month, names: &MONTHS, is_short: true },
        'B' => Piece::Name { field: F::Month, names: &MONTHS, is_short: false },
        'a' => Piece::Name { field: F::Weekday, names: &DAYS, is_short: true },
        'A' => Piece::Name { field: F::Weekday, names: &DAYS, is_short: false },
        'p' | 'P' => Piece::Name { field: F::HalfDay, names: &["am", "pm"], is_short: false },
        'f' => Piece::Fraction { most: 6, least: 1 },
        'z' => Piece::Offset,
        'Z' => Piece::Zone,
        's' => Piece::Epoch,
        '%' => Piece::Is('%'),
        'n' | 't' => {
            blank(pieces);
            return Ok(filled + 1);
        }
        _ => {
            let whole = match name {
                'T' | 'X' => "%H:%M:%S",
                'R' => "%H:%M",
                'r' => "%I:%M:%S %p",
                'F' => "%Y-%m-%d",
                'D' | 'x' => "%m/%d/%y",
                'c' => "%a %b %d %H:%M:%S %Y",
                '+' => "%Y-%m-%dT%H:%M:%S%.f%z",
                _ => return Err(format!("%{name} is not a directive that can be read")),
            };
            parse_into(whole, pieces)?;
            return Ok(filled + name.len_utf8());
        }
    };
    pieces.push(piece);
    Ok(filled + 1)
}

/// Whether a text matches the pieces, from here on to its end. If a piece may take more or less, it
/// takes more if the rest still matches.
fn matches(pieces: &[Piece], text: &str, found: &mut Found) -> bool {
    let Some((piece, rest)) = pieces.split_first() else { return text.is_empty() };
    let bytes = text.as_bytes();
    match *piece {
        Piece::Is(c) => {
            let mut chars = text.chars();
            let is_it = chars.next().is_some_and(|other| other == c || same_letter(c, other));
            is_it && matches(rest, chars.as_str(), found)
        }
        Piece::Blank => {
            let ends = text.char_indices().take_while(|(_, c)| c.is_whitespace());
            let mut ends =
                ends.map(|(at, c)| at + c.len_utf8()).collect::<Vec<_>>().into_iter().rev();
            ends.any(|end| matches(rest, &text[end..], found))
        }
        Piece::Number { field, most, least, range, padded } => {
            let len = digits(bytes, most);
            for len in (least..=len).rev() {
                let value = number(&bytes[..len]);
                if range.0 <= value && value <= range.1 {
                    found[field as usize] = match (field, range) {
                        // The first day is Monday, 0.
                        (Field::Weekday, (1, _)) => value - 1,
                        (Field::Weekday, _) => (value + 6) % 7,
                        _ => value,
                    };
                    if matches(rest, &text[len..], found) {
                        return true;
                    }
                }
            }
            let value = match bytes {
                [b' ', digit @ b'0'..=b'9', ..] if padded => i64::from(digit - b'0'),
                _ => return false,
            };
            found[field as usize] = value;
            value >= range.0 && matches(rest, &text[2..], found)
        }
        Piece::Name { field, names, is_short } => {
            let mut of = names.iter().enumerate();
            of.any(|(nth, name)| {
                let name = if is_short { &name[..SHORT] } else { name };
                let is_it = bytes.len() >= name.len()
                    && bytes[..name.len()].eq_ignore_ascii_case(name.as_bytes());
                let from = i64::from(field == Field::Month);
                found[field as usize] = nth as i64 + from;
                is_it && matches(rest, &text[name.len()..], found)
            })
        }
        Piece::Fraction { most, least } => fraction(text, most, least, rest, found),
        Piece::Point => match text.strip_prefix('.') {
            Some(text) => fraction(text, 9, 1, rest, found),
            None => {
                found[Field::Fraction as usize] = 0;
                matches(rest, text, found)
            }
        },
        Piece::Offset => offsets(bytes).into_iter().flatten().any(|(len, us)| {
            found[Field::Offset as usize] = us;
            matches(rest, &text[len..], found)
        }),
        Piece::Zone => ["utc", "gmt", "z"].iter().any(|name| {
            let is_it = bytes.len() >= name.len()
                && bytes[..name.len()].eq_ignore_ascii_case(name.as_bytes());
            is_it && matches(rest, &text[name.len()..], found)
        }),
        Piece::Epoch => {
            let sign = usize::from(bytes.first() == Some(&b'-'));
            let len = digits(&bytes[sign..], 15);
            found[Field::Epoch as usize] =
                number(&bytes[sign..sign + len]) * if sign == 1 { -1 } else { 1 };
            len > 0 && matches(rest, &text[sign + len..], found)
        }
    }
}

fn same_letter(a: char, b: char) -> bool {
    a.to_lowercase().eq(b.to_lowercase())
}

fn fraction(text: &str, most: usize, least: usize, rest: &[Piece], found: &mut Found) -> bool {
    let bytes = text.as_bytes();
    (least..=digits(bytes, most)).rev().any(|len| {
        let (near, far) = bytes[..len].split_at(len.min(6));
        let us = number(near) * 10i64.pow(6 - near.len() as u32);
        // A fraction finer than a microsecond. The sign distinguishes it from all others.
        found[Field::Fraction as usize] = if far.iter().any(|b| *b != b'0') { -1 } else { us };
        matches(rest, &text[len..], found)
    })
}

/// Returns the number of leading digits, up to a largest number.
fn digits(bytes: &[u8], most: usize) -> usize {
    bytes.iter().take(most).take_while(|b| b.is_ascii_digit()).count()
}

fn number(digits: &[u8]) -> i64 {
    digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// Returns the offsets that a text may begin with, in microseconds, each with its length: the
/// longest first.
fn offsets(bytes: &[u8]) -> [Option<(usize, i64)>; 3] {
    let sign = match bytes.first() {
        Some(b'Z') => return [Some((1, 0)), None, None],
        Some(b'+') => 1,
        Some(b'-') => -1,
        _ => return [None; 3],
    };
    let two = |at: usize, max: i64| {
        let two = bytes.get(at..at + 2).filter(|two| digits(two, 2) == 2).map(number);
        two.filter(|two| *two <= max)
    };
    let colon = |at: usize| at + usize::from(bytes.get(at) == Some(&b':'));
    let of = |seconds: i64, us: i64| sign * (seconds * 1_000_000 + us);
    let at = colon(3);
    let (Some(hours), Some(minutes)) = (two(1, 23), two(at, 59)) else { return [None; 3] };
    let minutes = (hours * 60 + minutes) * 60;
    let short = Some((at + 2, of(minutes, 0)));
    // Seconds are written as minutes are.
    let behind = colon(at + 2);
    let has_colon = at == 4;
    let Some(seconds) = two(behind, 59).filter(|_| has_colon == (behind == at + 3)) else {
        return [short, None, None];
    };
    let long = Some((behind + 2, of(minutes + seconds, 0)));
    let fraction = bytes.get(behind + 3..).map_or(0, |rest| digits(rest, 6));
    if bytes.get(behind + 2) != Some(&b'.') || fraction == 0 {
        return [long, short, None];
    }
    let digits = &bytes[behind + 3..behind + 3 + fraction];
    let us = number(digits) * 10i64.pow(6 - fraction as u32);
    [Some((behind + 3 + fraction, of(minutes + seconds, us))), long, short]
}
