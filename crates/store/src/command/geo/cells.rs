//! Positions on the globe as numbers: geohashes of 52 bits, the cells around a place, and distances.
//!
//! A position is a cell of a grid of 2^26 by 2^26 over the map that web maps use (latitudes up to 85.05 degrees); its
//! number has the bits of latitude and longitude by turns, so cells that are near mostly have near numbers, and a larger
//! cell is a range of them. Distances are those on a sphere. Each step of the arithmetic is Redis's, because its order
//! shows in the last digits and at the borders of areas.

/// Bits of each coordinate of a position that is kept.
pub(super) const STEPS: u32 = 26;
pub(super) const LONGITUDE_MAX: f64 = 180.0;
pub(super) const LATITUDE_MAX: f64 = 85.05112878;
const EARTH_RADIUS_M: f64 = 6372797.560856;
/// Half the way around the earth on that map, in metres.
const MERCATOR_MAX_M: f64 = 20037726.37;

/// Longitude and latitude in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Position {
    pub(super) longitude: f64,
    pub(super) latitude: f64,
}

/// The range of a coordinate: from this number of degrees below zero to as many above.
type Reach = f64;

/// A cell of the grid with 2^`steps` by 2^`steps` cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    bits: u64,
    steps: u32,
}

/// The area of a cell, in degrees.
struct Area {
    longitude: (f64, f64),
    latitude: (f64, f64),
}

/// Spreads the bits of a number to the even places.
fn spread(number: u32) -> u64 {
    let mut bits = u64::from(number);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// Gathers the bits at the even places.
fn gather(bits: u64) -> u32 {
    let mut bits = bits & 0x5555_5555_5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u32
}

impl Cell {
    fn of(position: Position, steps: u32, latitude_max: Reach) -> Cell {
        let place = |degrees: f64, max: Reach| ((degrees + max) / (max + max) * (1_u64 << steps) as f64) as u32;
        let latitude = place(position.latitude, latitude_max);
        let longitude = place(position.longitude, LONGITUDE_MAX);
        Cell { bits: spread(latitude) | spread(longitude) << 1, steps }
    }

    fn area(self) -> Area {
        let range = |place: u32, max: Reach| {
            let (scale, cells) = (max + max, (1_u64 << self.steps) as f64);
            (f64::from(place) / cells * scale - max, (f64::from(place) + 1.0) / cells * scale - max)
        };
        let (latitude, longitude) = (gather(self.bits), gather(self.bits >> 1));
        Area { longitude: range(longitude, LONGITUDE_MAX), latitude: range(latitude, LATITUDE_MAX) }
    }

    /// Returns the cell this many columns to the east and rows to the north, wrapping around at the edges.
    fn beside(self, east: i32, north: i32) -> Cell {
        let mask = ((1_u64 << self.steps) - 1) as u32;
        // A position on the last degree is one cell beyond the edge, and stays there unless it moves.
        let moved = |place: u32, by: i32| if by == 0 { place } else { place.wrapping_add_signed(by) & mask };
        let (latitude, longitude) = (moved(gather(self.bits), north), moved(gather(self.bits >> 1), east));
        Cell { bits: spread(latitude) | spread(longitude) << 1, steps: self.steps }
    }

    /// Returns the range of scores of positions in the cell, without the end.
    fn scores(self) -> (f64, f64) {
        let shift = 2 * (STEPS - self.steps);
        ((self.bits << shift) as f64, ((self.bits + 1) << shift) as f64)
    }
}

/// Returns the score of a position.
pub(super) fn score_of(position: Position) -> f64 {
    Cell::of(position, STEPS, LATITUDE_MAX).bits as f64
}

/// Returns a score as an integer, as the machine converts it: whatever is in a sorted set may be asked for its
/// position.
pub(super) fn bits_of(score: f64) -> u64 {
    const HALF: f64 = (1_u64 << 63) as f64;
    match score {
        _ if score < HALF => score as i64 as u64,
        _ if score < 2.0 * HALF => score as u64,
        _ => 0,
    }
}

/// Returns the position that a score is: the middle of its cell.
pub(super) fn position_of(score: f64) -> Position {
    let area = Cell { bits: bits_of(score), steps: STEPS }.area();
    let middle = |(min, max): (f64, f64), limit: f64| ((min + max) / 2.0).clamp(-limit, limit);
    Position { longitude: middle(area.longitude, LONGITUDE_MAX), latitude: middle(area.latitude, LATITUDE_MAX) }
}

/// Returns a position as the eleven letters of a standard geohash, which has latitudes up to 90 degrees.
pub(super) fn letters_of(position: Position) -> [u8; 11] {
    const LETTERS: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
    let bits = Cell::of(position, STEPS, 90.0).bits;
    // Fifty of the 52 bits make ten letters; the eleventh letter is always the first one of the alphabet.
    std::array::from_fn(|at| match 47_u32.checked_sub(5 * at as u32) {
        Some(shift) => LETTERS[(bits >> shift) as usize & 31],
        None => LETTERS[0],
    })
}

fn radians(degrees: f64) -> f64 {
    degrees * (std::f64::consts::PI / 180.0)
}

fn degrees(radians: f64) -> f64 {
    radians / (std::f64::consts::PI / 180.0)
}

/// Returns the distance in metres, by the haversine formula.
pub(super) fn distance_m(from: Position, to: Position) -> f64 {
    let v = ((radians(to.longitude) - radians(from.longitude)) / 2.0).sin();
    if v == 0.0 {
        return latitude_distance_m(from.latitude, to.latitude);
    }
    let (from_latitude, to_latitude) = (radians(from.latitude), radians(to.latitude));
    let u = ((to_latitude - from_latitude) / 2.0).sin();
    let a = u * u + from_latitude.cos() * to_latitude.cos() * v * v;
    2.0 * EARTH_RADIUS_M * a.sqrt().asin()
}

fn latitude_distance_m(from: f64, to: f64) -> f64 {
    EARTH_RADIUS_M * (radians(to) - radians(from)).abs()
}

/// The shape of the searched area around a place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// In units.
    Circle { radius: f64 },
    /// In units.
    Rectangle { width: f64, height: f64 },
}

/// A shape around a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    pub(super) center: Position,
    pub(super) shape: Shape,
    /// Metres of a unit.
    pub(super) unit_m: f64,
}

impl Search {
    /// Returns the distance of a position in metres, if it is within the shape.
    pub(super) fn distance_m(&self, to: Position) -> Option<f64> {
        match self.shape {
            Shape::Circle { radius } => {
                Some(distance_m(self.center, to)).filter(|distance| *distance <= radius * self.unit_m)
            }
            Shape::Rectangle { width, height } => {
                if latitude_distance_m(to.latitude, self.center.latitude) > height * self.unit_m / 2.0 {
                    return None;
                }
                let straight = Position { longitude: self.center.longitude, latitude: to.latitude };
                if distance_m(to, straight) > width * self.unit_m / 2.0 {
                    return None;
                }
                Some(distance_m(self.center, to))
            }
        }
    }

    /// Returns the ranges of scores that members may have, in the order in which Redis visits them: the cell with the
    /// center, and those around it that the shape may reach.
    pub(super) fn ranges(&self) -> Vec<(f64, f64)> {
        let Position { longitude, latitude } = self.center;
        let (width, height, radius_m) = match self.shape {
            Shape::Circle { radius } => (radius, radius, radius),
            Shape::Rectangle { width, height } => {
                (width / 2.0, height / 2.0, ((width / 2.0) * (width / 2.0) + (height / 2.0) * (height / 2.0)).sqrt())
            }
        };
        let (width_m, height_m, radius_m) = (self.unit_m * width, self.unit_m * height, radius_m * self.unit_m);
        let latitude_reach = degrees(height_m / EARTH_RADIUS_M);
        // A degree of longitude is shortest on the side of the pole.
        let side = if latitude < 0.0 { latitude - latitude_reach } else { latitude + latitude_reach };
        let longitude_reach = degrees(width_m / EARTH_RADIUS_M / radians(side).cos());
        let (west, east) = (longitude - longitude_reach, longitude + longitude_reach);
        let (south, north) = (latitude - latitude_reach, latitude + latitude_reach);

        let mut steps = steps_for(radius_m, latitude);
        let mut cell = Cell::of(self.center, steps, LATITUDE_MAX);
        let is_short = cell.beside(0, 1).area().latitude.1 < north
            || cell.beside(0, -1).area().latitude.0 > south
            || cell.beside(1, 0).area().longitude.1 < east
            || cell.beside(-1, 0).area().longitude.0 > west;
        if steps > 1 && is_short {
            steps -= 1;
            cell = Cell::of(self.center, steps, LATITUDE_MAX);
        }
        let area = cell.area();
        // If the middle cell covers a side, the neighbour on that side is not needed.
        let trims = steps >= 2;
        let needed = |east_by: i32, north_by: i32| {
            !(trims
                && (north_by < 0 && area.latitude.0 < south
                    || north_by > 0 && area.latitude.1 > north
                    || east_by < 0 && area.longitude.0 < west
                    || east_by > 0 && area.longitude.1 > east))
        };
        let mut ranges = Vec::with_capacity(9);
        let mut last = None;
        for (east_by, north_by) in [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)] {
            let cell = cell.beside(east_by, north_by);
            // On the coarsest grid, the neighbours of both sides are the same cell.
            if !needed(east_by, north_by) || last == Some(cell) {
                continue;
            }
            ranges.push(cell.scores());
            last = Some(cell);
        }
        ranges
    }
}

/// Bits of each coordinate of cells so large that nine of them cover a circle.
fn steps_for(mut radius_m: f64, latitude: f64) -> u32 {
    if radius_m == 0.0 {
        return STEPS;
    }
    let mut steps = 1_i32;
    while radius_m < MERCATOR_MAX_M {
        radius_m *= 2.0;
        steps += 1;
    }
    // So that the shape never reaches beyond the neighbours; and cells are narrower towards the poles.
    steps -= 2;
    if latitude.abs() > 66.0 {
        steps -= 1 + i32::from(latitude.abs() > 80.0);
    }
    steps.clamp(1, STEPS as i32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_redis() {
        let palermo = Position { longitude: 13.361389, latitude: 38.115556 };
        let score = score_of(palermo);
        assert_eq!(score, 3479099956230698.0);
        let back = position_of(score);
        assert_eq!((back.longitude, back.latitude), (13.361389338970184, 38.1155563954963));
        assert_eq!(&letters_of(back), b"sqc8b49rny0");
        let catania = position_of(score_of(Position { longitude: 15.087269, latitude: 37.502669 }));
        assert_eq!(format!("{:.4}", distance_m(back, catania)), "166274.1516");
    }

    #[test]
    fn bits_are_spread_and_gathered() {
        for number in [0, 1, 0x8000_0000, u32::MAX, 0x1234_5678] {
            assert_eq!(gather(spread(number)), number);
            assert_eq!(gather(spread(number) << 1), 0);
        }
    }

    #[test]
    fn any_score_has_a_position() {
        for score in [0.0, -0.0, -1.0, 1e300, -1e300, f64::INFINITY, f64::NEG_INFINITY, 1.5, 9.3e18, 1.7e19] {
            let Position { longitude, latitude } = position_of(score);
            assert!(longitude.abs() <= LONGITUDE_MAX && latitude.abs() <= LATITUDE_MAX);
        }
    }

    /// Nothing within a shape is outside the ranges that are gone through, wherever it is.
    #[test]
    fn ranges_cover_the_shape() {
        proptest::proptest!(|(longitude in -179.0..179.0, latitude in -84.0..84.0, turn in 0.0..std::f64::consts::TAU, share in 0.0..1.0, power in 0.0..5.5)| {
            let radius = 10_f64.powf(power);
            let center = Position { longitude, latitude };
            let search = Search { center, shape: Shape::Circle { radius }, unit_m: 1.0 };
            let reach = degrees(radius * share / EARTH_RADIUS_M);
            let other = Position {
                longitude: longitude + reach * f64::sin(turn) / radians(latitude).cos(),
                latitude: latitude + reach * f64::cos(turn),
            };
            let inside = other.longitude.abs() < LONGITUDE_MAX && other.latitude.abs() < LATITUDE_MAX;
            let score = score_of(other);
            if inside && search.distance_m(position_of(score)).is_some() {
                assert!(search.ranges().iter().any(|(from, to)| (*from..*to).contains(&score)), "{center:?} {other:?}");
            }
        });
    }
}
