package fault

import (
	"fmt"
	"strings"
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
