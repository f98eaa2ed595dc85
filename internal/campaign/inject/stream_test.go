package inject

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/campaign/account"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/testing/machine"
)

// sendPath is the code with which a host half hands every datagram of the direct rail to the kernel: the counterpart of
// the paper's sending path.
var sendPath = []string{
	"github.com/lofamo/lofamo/pkg/servicenet/direct.(*endpoint).send",
	"github.com/lofamo/lofamo/pkg/servicenet/direct.(*endpoint).send.func1",
}

// codeStream is the class of these flips.
const codeStream = "code: the sending path of a stream"

// streamLoad makes one node report forty times a second. The sensors of a starved half answer too late for their
// period and become UNKNOWN.
var streamLoad = load{sense: 20 * time.Millisecond, every: 25 * time.Millisecond, nodes: 1,
	changes: []string{"temperature", "power", "voltage"}}

// A stream is steady if this share of its reports was made within streamBefore, each RECEIVED within steadyWithin, or within
// streamBefore in the short form.
const (
	steadyShare  = 0.75
	steadyWithin = 20 * time.Millisecond
)

// The recorded part of a stream around a flip.
const (
	streamBefore = time.Second
	streamAfter  = 2 * time.Second
)

// passage is the way of one report through a stream. Times count from the flip.
type passage struct{ made, received, committed time.Duration }

// MarshalText writes the three times in microseconds.
func (p passage) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%d %d %d", p.made.Microseconds(), p.received.Microseconds(), p.committed.Microseconds()), nil
}

// UnmarshalText reads the form of MarshalText.
func (p *passage) UnmarshalText(b []byte) error {
	var made, received, committed int64
	if _, err := fmt.Sscanf(string(b), "%d %d %d", &made, &received, &committed); err != nil {
		return fmt.Errorf("passage of a report %q: %w", b, err)
	}
	*p = passage{time.Duration(made) * time.Microsecond, time.Duration(received) * time.Microsecond,
		time.Duration(committed) * time.Microsecond}
	return nil
}

// effect is the effect of a flip in the sending path on a stream.
type effect string

// Effects, as the campaign sees them within streamAfter.
const (
	streamCrash  effect = "the half ended, and its daemon restarted it"
	streamHang   effect = "the half hung, and its daemon restarted it"
	streamTested effect = "the half failed its self-test, and its daemon restarted it"
	streamNamed  effect = "the half went on, and the map named a fault"
	streamLate   effect = "the half went on with late reports, and nothing found it in time"
	streamNone   effect = "none"
)

// effects lists the effects in the document's order.
var effects = []effect{streamCrash, streamHang, streamTested, streamNamed, streamLate, streamNone}

// streamFlip is a flip in the sending path of a stream, and its course. Times count from the flip.
type streamFlip struct {
	Effect  effect        `json:"effect"`
	Place   string        `json:"place"`
	Number  int           `json:"number"` // among the flips of the run, from 1
	Found   string        `json:"found,omitempty"`
	Detect  time.Duration `json:"detect,omitempty"`
	Serving time.Duration `json:"serving,omitempty"` // 0: its daemon did not restart the half in the recorded part
	// Reports are those made in the recorded part, in order.
	Reports []passage `json:"reports"`
	// Replaced is the number of further reports that others stand for.
	Replaced int `json:"replaced,omitempty"`
}

// streamRecord is a run of flips in the sending path of a stream.
type streamRecord struct {
	record
	Nice    int            `json:"nice"`  // of the processes
	Bytes   uint64         `json:"bytes"` // of machine code in the sending path
	Every   time.Duration  `json:"every"` // between two changes that make a report
	Effects map[effect]int `json:"effects"`
	// Flips are the first flip with each effect.
	Flips []streamFlip `json:"flips"`
}

// Reports are late if their median is longer than lateLeast, and than lateFactor medians before the flip. A busy machine
// delays single reports for longer.
const (
	lateFactor = 3
	lateLeast  = 20 * time.Millisecond
)

// late reports whether most reports after the flip were late.
func (x streamFlip) late() bool {
	before, after, _ := x.split()
	median := quantile(after, .5)
	return median > lateLeast && median > lateFactor*quantile(before, .5)
}

// split returns how long the reports made before and after the flip took until RECEIVED, and when reports were RECEIVED.
// A report that was on its way at the flip belongs to those after it.
func (x streamFlip) split() (before, after, received []time.Duration) {
	for _, p := range x.Reports {
		received = append(received, p.received)
		if p.received < 0 {
			before = append(before, p.received-p.made)
		} else {
			after = append(after, p.received-p.made)
		}
	}
	return before, after, received
}

// effectOf returns the effect of a flip.
func effectOf(ours detector, restarted, late bool) effect {
	switch {
	case ours == byWatchdog:
		return streamHang
	case ours == bySelfTest && restarted:
		return streamTested
	case restarted:
		return streamCrash
	case ours != "":
		return streamNamed
	case late:
		return streamLate
	}
	return streamNone
}

// tracks collects the reports of a half from the logs of that half and of the supervisor.
type tracks struct {
	made, taken, committed map[string]time.Time
	replaced               map[string]bool
}

// readTracks reads two logs from an offset on each.
func readTracks(own string, from int64, supervisor string, since int64) (tracks, error) {
	t := tracks{map[string]time.Time{}, map[string]time.Time{}, map[string]time.Time{}, map[string]bool{}}
	first := func(at map[string]time.Time, id string, l logLine) {
		if at[id].IsZero() {
			at[id] = l.Time
		}
	}
	if err := eachLine(own, from, func(l logLine) {
		for _, id := range l.Reports {
			switch l.Msg {
			case account.Kept:
				first(t.made, id, l)
			case account.Replaced:
				t.replaced[id] = true
			}
		}
	}); err != nil {
		return t, err
	}
	err := eachLine(supervisor, since, func(l logLine) {
		switch l.Msg {
		case engine.TraceTaken:
			first(t.taken, l.Report, l)
		case engine.TraceCommitted:
			for _, id := range l.Reports {
				first(t.committed, id, l)
			}
		}
	})
	return t, err
}

// around returns the reports made near a flip in the order in which they were made, the number of replaced ones, and the
// number of those that are not committed yet.
func (t tracks) around(flip time.Time) (reports []passage, replaced, open int) {
	for id, at := range t.made {
		made := at.Sub(flip)
		if made < -streamBefore || made > streamAfter {
			continue
		}
		taken, committed := t.taken[id], t.committed[id]
		switch {
		case !taken.IsZero() && !committed.IsZero():
			reports = append(reports, passage{made, taken.Sub(flip), committed.Sub(flip)})
		case t.replaced[id]:
			replaced++
		default:
			open++
		}
	}
	slices.SortFunc(reports, func(a, b passage) int { return cmp.Compare(a.made, b.made) })
	return reports, replaced, open
}

// steady waits until the stream of a node is steady, and returns the offsets of the two logs before that.
func (f *field) steady(own, supervisor string) (from, since int64, err error) {
	within := steadyWithin
	if *streamFlips == 0 { // the short form shows only that every report arrives once; it runs on loaded machines too
		within = streamBefore
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if from, err = size(own); err != nil {
			return 0, 0, err
		}
		if since, err = size(supervisor); err != nil {
			return 0, 0, err
		}
		time.Sleep(streamBefore)
		t, err := readTracks(own, from, supervisor, since)
		if err != nil {
			return 0, 0, err
		}
		reports, _, _ := t.around(time.Now())
		if isSteady(reports, f.demand.every, within) {
			return from, since, nil
		}
		if time.Now().After(deadline) {
			return 0, 0, fmt.Errorf("the stream is not steady after %s: %d reports in the last %s", patience, len(reports), streamBefore)
		}
	}
}

// isSteady reports whether reports made within streamBefore are a stream in which none was RECEIVED later than within.
func isSteady(reports []passage, every, within time.Duration) bool {
	return float64(len(reports)) >= steadyShare*float64(streamBefore/every) && slowest(reports) <= within
}

// slowest returns the longest time until a report was RECEIVED.
func slowest(reports []passage) (most time.Duration) {
	for _, p := range reports {
		most = max(most, p.received-p.made)
	}
	return most
}

// tryStream flips one bit in the sending path of a node's host half, which makes a stream of reports, and restarts the
// half.
func (f *field) tryStream(n cluster.NodeInfo, b codeBit) (sample, streamFlip, error) {
	x := streamFlip{Place: b.String()}
	if err := f.rested(n); err != nil {
		return sample{}, x, err
	}
	own, supervisor := f.Cluster.Log(n, host.half().String()), f.Cluster.SupervisorLog(f.Cluster.Info().Supervisors[0].ID)
	from, since, err := f.steady(own, supervisor)
	if err != nil {
		return sample{}, x, err
	}
	mark := f.Mark()
	var flip time.Time
	s, err := f.tryFlip(n, host, func(pid int) (string, error) {
		flip = time.Now()
		return fmt.Sprintf("host half of %s: %s", n.ID, b), flipCode(pid, b)
	}, false)
	if err != nil {
		return s, x, err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		t, err := readTracks(own, from, supervisor, since)
		if err != nil {
			return s, x, err
		}
		var open int
		if x.Reports, x.Replaced, open = t.around(flip); open == 0 {
			break
		}
		if time.Now().After(deadline) {
			return s, x, fmt.Errorf("%s: %d reports are not committed after %s", s.what, open, patience)
		}
	}
	restarted := s.recover > 0 // by its daemon, while the campaign watched
	if x.Effect = effectOf(s.ours, restarted, x.late()); s.ours != "" {
		x.Found, x.Detect = string(s.ours), s.detect
	}
	switch {
	case restarted:
		x.Serving = s.recover
	case s.ours != "":
		for _, e := range f.Since(mark) {
			if f.detects(e, n) {
				x.Found = fmt.Sprintf("%s %s, by %s (%s)", e.GetComponent(), e.GetTo(), e.GetPath(), e.GetReason())
				break
			}
		}
	}
	return s, x, nil
}

// TestStream flips bits in the sending path of a running host half that makes a stream of reports (seed 000, Figure 3).
// Every report must arrive once. The record keeps the first flip with each effect.
func TestStream(t *testing.T) {
	agent := filepath.Join(programs(t), "lofamo-agent")
	var path []instructions
	for _, name := range sendPath {
		code, err := function(agent, name)
		if err != nil {
			t.Fatal(err)
		}
		path = append(path, code)
	}
	f := newFieldOf(t, "2x2x1", programs(t), streamLoad)
	f.watch = streamAfter
	c := conditions{began: time.Now(), load: machine.LoadAverages()}
	rec := streamRecord{Bytes: bits(path) / 8, Every: streamLoad.every, Effects: map[effect]int{}}
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	rec.Nice = 20 - priority // the kernel answers so, to keep negative numbers for errors
	r, k := rand.New(rand.NewPCG(*seed, 7)), newClass(codeStream, *seed)
	for i := range max(*streamFlips, 2) {
		b := bitAt(path, r.Uint64N(bits(path)))
		if b.name, err = lineAt(agent, b.addr); err != nil {
			t.Fatal(err)
		}
		b.name = strings.TrimPrefix(b.name, "github.com/lofamo/lofamo/")
		s, x, err := f.tryStream(f.nodes[0], b)
		if err != nil {
			t.Fatal(err)
		}
		k.add(s)
		x.Number = i + 1
		t.Logf("flip %d, %s: %s; found after %s: %s; serving after %s; %d reports, slowest %s", x.Number, x.Place, x.Effect, x.Detect, x.Found,
			x.Serving, len(x.Reports), slowest(x.Reports))
		if rec.Effects[x.Effect]++; rec.Effects[x.Effect] == 1 {
			rec.Flips = append(rec.Flips, x)
		}
	}
	k.apart, k.took = true, time.Since(c.began)
	report(t, k)
	accounts(t, []*field{f})
	if c.failed = t.Failed(); *streamFlips == 0 || *recordOut == "" {
		return
	}
	rec.record = c.recordOf([]*class{k})
	rec.Full = true
	amend(t, *recordOut, func(whole *record) { whole.Stream = &rec })
}
