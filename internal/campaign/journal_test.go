package campaign

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
)

// journal is a sender's record for the test, one line each:
//
//	made NUMBER ID FINGERPRINT LEFTOUT   before it is kept or sent
//	kept NUMBER…                         when the spool has said that they are on disk
//
// Every line is written immediately, so that it survives a kill. The kept lines are synced to disk.
type journal struct{ f *os.File }

func journalPath(dir string) string { return filepath.Join(dir, "journal") }

func openJournal(dir string) (*journal, error) {
	f, err := os.OpenFile(journalPath(dir), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &journal{f}, err
}

func (j *journal) made(r fault.Report) error {
	n, leftOut := numberOf(r)
	_, err := fmt.Fprintf(j.f, "made %d %s %s %d\n", n, r.ID, engine.Fingerprint(r), leftOut)
	return err
}

// kept records numbers.
func (j *journal) kept(ns []int) error {
	if len(ns) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(j.f, "kept", strings.Trim(fmt.Sprint(ns), "[]")); err != nil {
		return err
	}
	return j.f.Sync()
}

// goOn returns the last number made and the number of kept ones, including those found in the spool.
func (j *journal) goOn(found []int) (made, kept int, err error) {
	a, err := readJournal(j.f.Name())
	if err != nil {
		return 0, 0, err
	}
	found = slices.DeleteFunc(found, func(n int) bool { return a.kept[n] })
	if err := j.kept(found); err != nil {
		return 0, 0, err
	}
	return a.last, len(a.kept) + len(found), nil
}

// journalAccount is the content of a journal.
type journalAccount struct {
	made map[string]string // fingerprint by ID
	ids  map[int]string    // by number
	kept map[int]bool      // by number
	last int               // last number made
	// leftOut is the number of earlier reports that a report counts as left out, by ID.
	leftOut map[string]int
}

func readJournal(path string) (journalAccount, error) {
	a := journalAccount{made: map[string]string{}, ids: map[int]string{}, kept: map[int]bool{}, leftOut: map[string]int{}}
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	for line := range strings.Lines(string(b)) { // of any length: after a long flood, one names all reports that the log kept
		if err := a.read(strings.Fields(line)); err != nil {
			return a, fmt.Errorf("journal %s: %w", path, err)
		}
	}
	return a, nil
}

func (a *journalAccount) read(words []string) error {
	if len(words) == 0 {
		return errors.New("an empty line")
	}
	var ns []int
	numbers := words[1:]
	if words[0] == "made" && len(words) == 5 {
		numbers = []string{words[1], words[4]}
	}
	for _, w := range numbers {
		var n int
		if _, err := fmt.Sscan(w, &n); err != nil {
			return fmt.Errorf("%q: %w", words, err)
		}
		ns = append(ns, n)
	}
	switch {
	case words[0] == "kept":
		for _, n := range ns {
			a.kept[n] = true
		}
	case words[0] == "made" && len(ns) == 2:
		if a.ids[ns[0]] != "" {
			return fmt.Errorf("report %d was made as %s and as %s", ns[0], a.ids[ns[0]], words[2])
		}
		a.made[words[2]], a.ids[ns[0]], a.last = words[3], words[2], max(a.last, ns[0])
		if ns[1] > 0 {
			a.leftOut[words[2]] = ns[1]
		}
	default:
		return fmt.Errorf("%q: what is that?", words)
	}
	return nil
}
