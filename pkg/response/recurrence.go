package response

import (
	"maps"
	"slices"
	"time"
)

// maxBegun limits the remembered beginnings of faults of one component.
const maxBegun = 64

// remember records the beginning of a fault.
func (w *world) remember(t Target, at time.Time, within time.Duration) {
	if w.from.IsZero() {
		w.from = at
	}
	all, began := w.begun[t], at.Sub(w.from)
	if n := len(all); n > 0 && began <= all[n-1] {
		return
	}
	old := 0
	for old < len(all) && (len(all)-old >= maxBegun || began-all[old] > within) {
		old++
	}
	w.begun[t] = append(slices.Delete(all, 0, old), began)
}

// forgetBegun forgets the components without a fault that began within the window.
func (w *world) forgetBegun(now time.Time, within time.Duration) {
	since := now.Sub(w.from)
	maps.DeleteFunc(w.begun, func(_ Target, all []time.Duration) bool { return since-all[len(all)-1] > within })
}

// recurrence returns the number of the component's faults within the window, including the present one.
func (w *world) recurrence(t Target, now time.Time, within time.Duration) int {
	n, since := 0, now.Sub(w.from)
	for _, began := range w.begun[t] {
		if since-began <= within {
			n++
		}
	}
	return max(1, n)
}
