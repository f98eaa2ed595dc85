package trial

import (
	"fmt"
	"maps"
	"slices"
)

// Ledger holds the changes that supervisors acknowledged. A change whose call failed without a clear answer may have
// happened or not.
type Ledger struct {
	acked  map[string]string
	unsure map[string][]string // all since the last acknowledged one
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger { return &Ledger{acked: map[string]string{}, unsure: map[string][]string{}} }

// Set records a change of a thing to a value, "" for its removal. acked is false if the call had no clear answer.
func (l *Ledger) Set(thing, value string, acked bool) {
	if !acked {
		l.unsure[thing] = append(l.unsure[thing], value)
		return
	}
	delete(l.unsure, thing)
	l.acked[thing] = value
}

// Value returns the acknowledged value of a thing; "" if there is none.
func (l *Ledger) Value(thing string) string { return l.acked[thing] }

// Compare compares the acknowledged changes with the present values.
func (l *Ledger) Compare(present map[string]string) (bad []string) {
	for _, thing := range slices.Sorted(maps.Keys(l.acked)) {
		if got, want := present[thing], l.acked[thing]; got != want && !slices.Contains(l.unsure[thing], got) {
			bad = append(bad, fmt.Sprintf("lost: %s is %q, and %q was acknowledged", thing, got, want))
		}
	}
	for _, thing := range slices.Sorted(maps.Keys(present)) {
		if _, acked := l.acked[thing]; !acked && !slices.Contains(l.unsure[thing], present[thing]) {
			bad = append(bad, fmt.Sprintf("lost: %s exists, and no call set it", thing))
		}
	}
	return bad
}
