package executor

import "testing"

// BenchmarkRun measures the start and end of a program that does nothing. It bounds the window between an executor's
// last token check and its act.
func BenchmarkRun(b *testing.B) {
	s := Program{Path: "/bin/true", MaxOutput: 100}
	for b.Loop() {
		if e := RunProgram(b.Context(), s); !e.OK() {
			b.Fatal(e)
		}
	}
}
