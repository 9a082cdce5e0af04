//! Writing SVG by hand: a few shapes, one style sheet, scales and round ticks.

use std::fmt::{Display, Write};

const STYLE: &str = "\
text{font-family:Inter,'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif;fill:#22252b}\
.title{font-size:25px;font-weight:650}\
.heading{font-size:14px;font-weight:600}\
.muted{font-size:13px;fill:#6b7280}\
.tick{font-size:12px;fill:#6b7280}\
.mark{font-size:13px;font-weight:600}\
.value{font-size:13px;font-weight:600;font-variant-numeric:tabular-nums}";

/// An SVG being written.
pub struct Svg {
    body: String,
}

/// A number as SVG wants it: two decimals are enough for a screen.
struct Px(f64);

impl Display for Px {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.2}", self.0);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl Svg {
    /// An empty white sheet with rounded corners.
    pub fn new(width: f64, height: f64, title: &str) -> Svg {
        let mut svg = Svg {
            body: String::new(),
        };
        svg.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\" \
             height=\"{}\" role=\"img\"><title>{}</title><style>{STYLE}</style>",
            Px(width),
            Px(height),
            Px(width),
            Px(height),
            escape(title)
        ));
        svg.rect(
            (0.5, 0.5),
            (width - 1.0, height - 1.0),
            "rx=\"14\" fill=\"#ffffff\" stroke=\"#e5e7eb\"",
        );
        svg
    }

    /// Adds markup as it is.
    pub fn add(&mut self, markup: std::fmt::Arguments<'_>) {
        // Writing to a String never fails.
        let _ = self.body.write_fmt(markup);
        self.body.push('\n');
    }

    /// Text at a baseline; `anchor` is start, middle or end.
    pub fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        self.add(format_args!(
            "<text x=\"{}\" y=\"{}\" class=\"{class}\" text-anchor=\"{anchor}\">{}</text>",
            Px(x),
            Px(y),
            escape(text)
        ));
    }

    /// Text in a colour of its own.
    pub fn coloured(
        &mut self,
        at: (f64, f64),
        class: &str,
        anchor: &str,
        colour: &str,
        text: &str,
    ) {
        self.add(format_args!(
            "<text x=\"{}\" y=\"{}\" class=\"{class}\" text-anchor=\"{anchor}\" \
             style=\"fill:{colour}\">{}</text>",
            Px(at.0),
            Px(at.1),
            escape(text)
        ));
    }

    /// A straight line; `style` holds further attributes.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        self.add(format_args!(
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {style}/>",
            Px(from.0),
            Px(from.1),
            Px(to.0),
            Px(to.1)
        ));
    }

    /// A rectangle by its upper left corner and its size.
    pub fn rect(&mut self, at: (f64, f64), size: (f64, f64), style: &str) {
        self.add(format_args!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {style}/>",
            Px(at.0),
            Px(at.1),
            Px(size.0.max(0.0)),
            Px(size.1.max(0.0))
        ));
    }

    /// A path through points; closed if `close` names the height to come back at.
    pub fn path(&mut self, points: &[(f64, f64)], close: Option<f64>, style: &str) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return;
        };
        let mut d = String::new();
        for (at, (x, y)) in points.iter().enumerate() {
            let command = if at == 0 { 'M' } else { 'L' };
            let _ = write!(d, "{command}{} {}", Px(*x), Px(*y));
        }
        if let Some(y) = close {
            let _ = write!(d, "L{} {}L{} {}Z", Px(last.0), Px(y), Px(first.0), Px(y));
        }
        self.add(format_args!("<path d=\"{d}\" {style}/>"));
    }

    /// Many dots of one kind, as one path of round strokes (small files).
    pub fn dots(&mut self, centres: &[(f64, f64)], size: f64, colour: &str) {
        if centres.is_empty() {
            return;
        }
        let mut d = String::new();
        for (x, y) in centres {
            let _ = write!(d, "M{} {}h0", Px(*x), Px(*y));
        }
        self.add(format_args!(
            "<path d=\"{d}\" stroke=\"{colour}\" stroke-width=\"{}\" stroke-linecap=\"round\" \
             stroke-opacity=\".75\" fill=\"none\"/>",
            Px(size)
        ));
    }

    /// A line across the sheet, from `left` to `right`, for about `wanted` round values of an upright
    /// scale, with what `label` says of each before it.
    pub fn levels(
        &mut self,
        scale: &Scale,
        (left, right): (f64, f64),
        wanted: f64,
        label: impl Fn(f64) -> String,
    ) {
        for value in scale.ticks(wanted) {
            let at = scale.at(value);
            self.line((left, at), (right, at), "stroke=\"#eceef1\"");
            self.text(left - 8.0, at + 4.0, "tick", "end", &label(value));
        }
    }

    /// The finished text.
    pub fn finish(mut self) -> String {
        self.body.push_str("</svg>\n");
        self.body
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Maps a stretch of values onto a stretch of the sheet.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Values, lowest and highest.
    pub domain: (f64, f64),
    /// Where they lie.
    pub range: (f64, f64),
}

impl Scale {
    /// Where `value` lies, kept inside the range.
    pub fn at(&self, value: f64) -> f64 {
        let (low, high) = self.domain;
        let share = ((value - low) / (high - low).max(f64::EPSILON)).clamp(0.0, 1.0);
        self.range.0 + share * (self.range.1 - self.range.0)
    }

    /// Round values inside the domain, about `wanted` of them.
    pub fn ticks(&self, wanted: f64) -> Vec<f64> {
        let (low, high) = self.domain;
        let rough = ((high - low) / wanted).max(f64::EPSILON);
        let magnitude = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .map(|m| m * magnitude)
            .find(|step| *step >= rough)
            .unwrap_or(10.0 * magnitude);
        let first = (low / step).ceil() as i64;
        let last = (high / step + 1e-9).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let scale = |low, high| Scale {
            domain: (low, high),
            range: (0.0, 1.0),
        };
        assert_eq!(
            scale(0.0, 1000.0).ticks(5.0),
            [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]
        );
        assert_eq!(scale(-130.0, 270.0).ticks(4.0), [-100.0, 0.0, 100.0, 200.0]);
    }

    #[test]
    fn values_outside_stay_on_the_sheet() {
        let scale = Scale {
            domain: (0.0, 10.0),
            range: (100.0, 0.0),
        };
        assert_eq!(
            [-5.0, 0.0, 5.0, 10.0, 99.0].map(|v| scale.at(v)),
            [100.0, 100.0, 50.0, 0.0, 0.0]
        );
    }
}
