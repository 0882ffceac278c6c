//! The distance of two names, for suggestions.

/// Characters of a name that are compared: names in files may have any length.
const MOST: usize = 64;

/// The number of characters to insert, remove or replace to turn one name into another (Levenshtein, 1965), of the first 64
/// characters of each.
///
/// ```
/// use trike_core::edit_distance;
///
/// assert_eq!(edit_distance("kitten", "sitting"), 3);
/// assert_eq!((edit_distance("", "abc"), edit_distance("a", "a")), (3, 0));
/// ```
#[must_use]
pub fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(MOST).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(MOST).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
