use crate::check;

#[test]
fn without_its_functions_it_is_refused() {
    let cases = [
        (r#""program":"rust""#, "hotel has its functions in Python"),
        (r#""program":"python""#, "were not given"),
        (r#""keys":9,"items":7"#, "--items: hotel has no such option"),
    ];
    check::are_refused("hotel", &cases);
}
