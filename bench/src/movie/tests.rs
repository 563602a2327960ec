use crate::check;

#[test]
fn without_its_functions_it_is_refused() {
    let cases = [
        (r#""program":"traced""#, "movie has its functions in Python"),
        (r#""program":"python""#, "were not given"),
    ];
    check::are_refused("movie", &cases);
}
