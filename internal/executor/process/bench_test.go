package process

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkCommit measures the commit that an attempt waits for twice, by the number of attempts in the ledger.
func BenchmarkCommit(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := b.TempDir()
			if _, err := Init(dir, "c", false, time.Now()); err != nil {
				b.Fatal(err)
			}
			d, _, err := open(dir, "c", start)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = d.close() }()
			for i := range n {
				d.change(func(l *ledger) bool { return l.admit(start, effect(1, fmt.Sprint("r1-", i), 0, 1)) == begin })
			}
			attempt := 1
			for b.Loop() {
				attempt++
				if err := d.commit(d.change(func(l *ledger) bool { return l.admit(start, effect(1, "r1-0", 0, attempt)) == begin })); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
