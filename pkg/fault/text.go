package fault

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Plural prints a number and a noun: 1 node, 2 nodes, 2 retries.
func Plural[N int | uint32 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "ry"); ok {
		return fmt.Sprintf("%d %sries", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// List prints values with commas: "viewer, operator".
func List[T any](of []T) string {
	names := make([]string, len(of))
	for i, v := range of {
		names[i] = fmt.Sprint(v)
	}
	return strings.Join(names, ", ")
}

// MaxDetail bounds a text for people in a report or a verdict, in bytes.
const MaxDetail = 120

// Cut shortens s to at most limit bytes, at the end of a character: part of a character is invalid UTF-8 and could not
// be sent.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// Hidden reports whether a character is not shown as itself: control characters, which could control a reader's terminal,
// format characters, which could change the order of the text around them or make two texts look alike, separators of lines and
// paragraphs, and characters that most fonts do not show.
func Hidden(r rune) bool {
	return r < ' ' || r > '~' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point,
		unicode.Variation_Selector)
}

// IsText reports whether s is valid UTF-8 without Hidden characters: a text that people may read anywhere.
func IsText(s string) bool {
	return IsPlain(s) || utf8.ValidString(s) && !strings.ContainsFunc(s, Hidden)
}

// Clean makes a text for people out of any bytes: valid UTF-8 of at most limit bytes. Blanks replace Hidden characters. It looks at 4·limit
// bytes at most.
func Clean(s string, limit int) string {
	if len(s) <= limit && IsPlain(s) {
		return s
	}
	s = s[:min(len(s), 4*limit)] // only after a long run of invalid bytes would some of the rest fit
	return Cut(strings.Map(func(r rune) rune {
		if Hidden(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?")), limit)
}

// IsPlain reports whether s is printable ASCII, as nearly all texts are.
func IsPlain(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}
