package program

import "testing"

// BenchmarkRun is what bounds the window between an executor's last look at the token and its act: starting a program that does
// nothing, and its end.
func BenchmarkRun(b *testing.B) {
	s := Spec{Path: "/bin/true", MaxOutput: 100}
	for b.Loop() {
		if e := Run(b.Context(), s); !e.OK() {
			b.Fatal(e)
		}
	}
}
