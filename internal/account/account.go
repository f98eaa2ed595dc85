// Package account counts the requests to executors of responses, with outcomes and reasons, for tests and simulations. It prints
// them as a table that an operator can read.
package account

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
)

// Entry is one line of the table.
type Entry struct {
	Asked  string // what, as "kubernetes.cordon"
	Became string // as "done", "put back", "refused"
	Why    string // as an operator reads it; empty: as asked
}

// Account holds the counts. Its zero value is empty; several goroutines may use it at once.
type Account struct {
	mu    sync.Mutex
	times map[Entry]int
}

// Note increases the count of an entry by one.
func (a *Account) Note(e Entry) { a.Add(e, 1) }

// Add increases the count of an entry.
func (a *Account) Add(e Entry, times int) {
	if times == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.times == nil {
		a.times = map[Entry]int{}
	}
	a.times[e] += times
}

// Times returns the total count of the entries for which the function returns true.
func (a *Account) Times(so func(Entry) bool) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for e, times := range a.times {
		if so(e) {
			n += times
		}
	}
	return n
}

// String returns the sorted table, with one line for each reason.
func (a *Account) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "ASKED\tBECAME\tTIMES\tWHY")
	for _, e := range slices.SortedFunc(maps.Keys(a.times), func(x, y Entry) int {
		return cmp.Or(cmp.Compare(x.Asked, y.Asked), cmp.Compare(x.Became, y.Became), cmp.Compare(x.Why, y.Why))
	}) {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", e.Asked, e.Became, a.times[e], e.Why)
	}
	_ = w.Flush() // to memory
	return b.String()
}
