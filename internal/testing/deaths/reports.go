package deaths

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/campaign/account"
)

// notOnDisk is how long before a death a report may have entered a node's log and still be missing on its disk: the spool
// writes behind the half (ADR 8). The promise of exactly one delivery begins after that.
const notOnDisk = time.Second

// reports collects from the programs' logs which reports nodes kept and the supervisor committed. It is safe for
// concurrent use.
type reports struct {
	dir string

	mu   sync.Mutex
	kept []map[string]time.Time // when each report entered the node's log
	died [][]time.Time
	more *feed[int] // the node that kept another report
	err  error      // of a file
}

func newReports(dir string, nodes int) *reports {
	r := &reports{dir: dir, kept: make([]map[string]time.Time, nodes), died: make([][]time.Time, nodes), more: newFeed[int]()}
	for i := range r.kept {
		r.kept[i] = map[string]time.Time{}
	}
	return r
}

// wanted are parts of the lines that the account reads; all other lines are left out.
var wanted = [][]byte{[]byte(`"reports kept"`), []byte(`"reports replaced"`), []byte(`"term begins"`), []byte(`"inbox position"`),
	[]byte(`"report taken"`), []byte(`"reports committed"`)}

// add writes a line to the file of the account, if it is one.
func (r *reports) add(name string, line []byte) bool {
	line = bytes.TrimSpace(line)
	if !slices.ContainsFunc(wanted, func(w []byte) bool { return bytes.Contains(line, w) }) || !json.Valid(line) {
		return false
	}
	f, err := os.OpenFile(r.path(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.Write(append(line, '\n'))
		err = errors.Join(err, f.Close())
	}
	r.err = errors.Join(r.err, err)
	return true
}

func (r *reports) path(name string) string { return filepath.Join(r.dir, name+".reports") }

// agent takes a line of a node's log.
func (r *reports) agent(i int, line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var l struct {
		Msg     string
		Reports []string
	}
	if !r.add(fmt.Sprintf("n%d", i), line) || json.Unmarshal(line, &l) != nil || l.Msg != account.Kept {
		return
	}
	for _, id := range l.Reports {
		r.kept[i][id] = time.Now()
	}
	r.more.add(i)
}

// supervisor takes a line of the supervisor's log.
func (r *reports) supervisor(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add("s1", line)
}

// dies records the death of a node's kernel.
func (r *reports) dies(i int, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.died[i] = append(r.died[i], at)
}

// Reports are the counts of an account.
type Reports struct {
	Kept     int      `json:"kept"`
	Accepted int      `json:"accepted"` // committed at the supervisor, each counted once
	Replaced int      `json:"replaced"` // others stand for them
	Cut      int      `json:"cut"`      // kept in the last second before a death, and not yet on disk
	Lost     []string `json:"lost,omitempty"`
	Doubled  []string `json:"doubled,omitempty"`
	waiting  []int    // by node
}

// count reads the account up to now. Reports in transit count as lost until they arrive.
func (r *reports) count() (out Reports, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, audit := map[string]account.Fate{}, account.NewAudit()
	if err := errors.Join(r.err, audit.Read(r.path("s1"))); err != nil {
		return out, err
	}
	for i := range r.kept {
		if err := account.ReadKept(r.path(fmt.Sprintf("n%d", i)), kept); err != nil {
			return out, err
		}
	}
	accepted := audit.Accepted()
	lost, doubled, replaced := account.Balance(kept, accepted)
	out = Reports{Kept: len(kept), Accepted: len(accepted), Replaced: replaced, Doubled: doubled, waiting: make([]int, len(r.kept))}
	for _, id := range lost {
		i := r.owner(id)
		if slices.ContainsFunc(r.died[i], func(d time.Time) bool { at := r.kept[i][id]; return at.Before(d) && d.Sub(at) < notOnDisk }) {
			out.Cut++
			continue
		}
		out.waiting[i]++
		out.Lost = append(out.Lost, id)
	}
	slices.Sort(out.Lost)
	return out, nil
}

// owner returns the node whose log has the report.
func (r *reports) owner(id string) int {
	for i := range r.kept {
		if _, ok := r.kept[i][id]; ok {
			return i
		}
	}
	return 0
}
