package hostile

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	sequences = flag.Int("hostile.sequences", 0, "play so many sequences in place of the short form")
	firstSeed = flag.Uint64("hostile.seed", 1, "of the first sequence")
	page      = flag.String("hostile.out", "", "write the page of the run to this file")
	tested    = flag.String("hostile.sources", "unknown", "that the page names: the trees of the packages under test")
	machine   = flag.String("hostile.machine", "unknown", "that the page names")
	goOn      = flag.Bool("hostile.continue", false,
		"go on behind the seeds of the page, if it is of the same sources and broke nothing, and add to its figures")
	workers = flag.Int("hostile.workers", 1, "play so many sequences side by side")
	keep    = flag.String("hostile.keep", "", "write sequences that break a promise, cut short, into this folder")
)

const (
	shortForm      = 2000      // sequences
	leastPublished = 1_000_000 // sequences
	shownAtMost    = 5
	progressTime   = 30 * time.Second
)

func player(t *testing.T, plants Plants) *Player {
	t.Helper()
	p, err := NewPlayer(plants)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func play(t *testing.T, p *Player, s Sequence) Outcome {
	t.Helper()
	out, err := p.Play(s)
	if err != nil {
		t.Fatalf("%v:\n%s", err, s.String())
	}
	return out
}

// shorter shrinks a sequence that breaks a promise.
func shorter(p *Player, s Sequence, promise Promise) Sequence {
	return Shrink(s, func(s Sequence) bool {
		o, err := p.Play(s)
		return err == nil && o.Promise == promise
	})
}

// TestPromisesHold plays sequences of consecutive seeds: 2,000, or the number in -hostile.sequences. `make
// fuzz-semantics` runs it in its long form.
func TestPromisesHold(t *testing.T) {
	n := shortForm
	if testing.Short() {
		n /= 4
	}
	if *sequences > 0 {
		n = *sequences
		defer debug.SetGCPercent(debug.SetGCPercent(800)) // the worlds are small, and thrown away
	}
	p := player(t, Plants{})
	begun := time.Now()
	sum := Summary{Sources: *tested, Machine: fmt.Sprintf("%s, %d cores used, %s", *machine, *workers, runtime.Version()),
		Begun: begun.UTC().Format("2006-01-02 15:04 UTC"), First: *firstSeed}
	before := time.Duration(0)
	if *goOn {
		before = resume(t, &sum)
	}
	from := sum.First + uint64(sum.Sequences)
	var mu sync.Mutex
	var next atomic.Int64
	var wg sync.WaitGroup
	said, shown, first := begun, map[Promise]int{}, map[uint64]Sequence{}
	for range *workers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				seed := from + uint64(i)
				s := Draw(seed)
				out, err := p.Play(s)
				mu.Lock()
				sum.Add(seed, &s, &out)
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
				if out.Broken != "" {
					if shown[out.Promise]++; shown[out.Promise] <= shownAtMost {
						first[seed] = s
					}
				}
				if time.Since(said) > progressTime {
					said = time.Now()
					t.Logf("%d sequences after %s, broken %v", sum.Sequences, time.Since(begun).Round(time.Second), sum.Broken[1:])
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, seed := range slices.Sorted(maps.Keys(first)) {
		broken(t, p, seed, first[seed], play(t, p, first[seed]))
	}
	sum.Took = before + time.Since(begun)
	text, err := sum.Page()
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(text, dataMark)
	t.Logf("\n%s", table)
	for promise := Spared; promise < numPromises; promise++ {
		if sum.Broken[promise] > 0 {
			t.Errorf("%s was broken by %d of %d sequences", promise, sum.Broken[promise], sum.Sequences)
		}
	}
	if *page != "" {
		if err := os.WriteFile(*page, []byte(text), 0o644); err != nil { //nolint:gosec // documentation
			t.Fatal(err)
		}
	}
	if sum.Failed == 0 || sum.Notified == 0 || sum.Reduced == 0 || sum.Destroyed == 0 || sum.Challenges == 0 || sum.Notices == 0 ||
		sum.Hints == 0 || sum.Waits == 0 || sum.Absent == 0 {
		t.Errorf("no verdict, no step of some class, no challenge, no restart notice, no false hint, no verdict after the whole wait or no "+
			"ABSENT in %d sequences: this proves little", n)
	}
}

// resume begins with the figures of the page, and returns how long these took.
func resume(t *testing.T, sum *Summary) time.Duration {
	t.Helper()
	b, err := os.ReadFile(*page)
	if err != nil {
		t.Fatal(err)
	}
	was, err := ParsePage(string(b))
	if err != nil {
		t.Fatalf("%s: %v", *page, err)
	}
	if was.Sources != *tested || was.Machine != sum.Machine || len(was.Seeds) > 0 {
		t.Fatalf("%s is of sources %s on %s, and seeds %v broke a promise: want %s on %s, and none", *page, was.Sources, was.Machine,
			was.Seeds, *tested, sum.Machine)
	}
	*sum = *was
	return was.Took
}

// broken reports a sequence that breaks a promise, and stores the sequence on request.
func broken(t *testing.T, p *Player, seed uint64, s Sequence, out Outcome) {
	t.Helper()
	short := shorter(p, s, out.Promise)
	why := play(t, p, short)
	t.Errorf("seed %d breaks %s: %s. Cut short:\n%s", seed, out.Promise, why.Broken, short.String())
	if *keep == "" {
		return
	}
	name := filepath.Join(*keep, fmt.Sprintf("%s-%d.txt", out.Promise, seed))
	if err := os.WriteFile(name, fmt.Appendf(nil, "# Seed %d broke the promise %q: %s.\n%s", seed, out.Promise, why.Broken,
		short.String()), 0o644); err != nil { //nolint:gosec // test data
		t.Error(err)
	}
}

// TestKeptSequencesHold plays every sequence that once broke a promise.
func TestKeptSequencesHold(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d sequences, %v", len(files), err)
	}
	p := player(t, Plants{})
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			s, err := Parse(f)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if out := play(t, p, s); out.Broken != "" {
				t.Errorf("%s breaks %s: %s", file, out.Promise, out.Broken)
			}
		})
	}
}

// TestSameSequenceSameOutcome: a printed seed is useful only if it plays the same again, from its text too.
func TestSameSequenceSameOutcome(t *testing.T) {
	p := player(t, Plants{})
	for seed := uint64(1); seed <= 200; seed++ {
		s := Draw(seed)
		again, err := Parse(strings.NewReader(s.String()))
		if err != nil {
			t.Fatalf("seed %d: %v:\n%s", seed, err, s.String())
		}
		if again.String() != s.String() {
			t.Fatalf("seed %d: written\n%s, read\n%s", seed, s.String(), again.String())
		}
		if a, b := play(t, p, s), play(t, p, again); a != b {
			t.Fatalf("seed %d: %+v, and from its text %+v", seed, a, b)
		}
	}
}

// TestParseRefusesInvalidSequence expects the error of a bad sequence.
func TestParseRefusesInvalidSequence(t *testing.T) {
	const world = "torus 2x2x2\nliars 0,0,0\n"
	for _, tc := range []struct{ text, want string }{
		{"liars 0,0,0", "line 1"},
		{"torus 2x2x2\nliars 0,0,2", "line 2"},
		{world + "dead 0,0,0", "not the dead node"},
		{world + "loss 101", "want 0 to 100"},
		{world + "1s", "want a property"},
		{world + "1s sing 0,0,0/host", `verb "sing": want one of`},
		{world + "1s mute 0,0,0 held=1s", "0,0,1/host"},
		{world + "1s mute 0,0,0/host", "want [held] besides"},
		{world + "1s mute 0,0,0/host held=1s age=1s", `given "age=1s": want [held]`},
		{world + "1s mute 1,0,0/host held=1s", "want a liar"},
		{world + "3s speak 0,0,0/host", "less than 3s"},
		{world + "1s link 0,0,0/host direction=X+ link=odd", `link "odd": want one of`},
		{world + "1s replay 0,0,0/host index=-1 path=TORUS held=0s", "want 0 or more"},
		{world + "1s lose 0,0,0/host about=0,0,0 held=1s", "want an honest node"},
	} {
		if _, err := Parse(strings.NewReader(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.text, err, tc.want)
		}
	}
	s, err := Parse(strings.NewReader(world + "steps kubernetes.explode"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := player(t, Plants{}).Play(s); err == nil || !strings.Contains(err.Error(), "kubernetes.explode") {
		t.Errorf("an unknown step: %v", err)
	}
}

// TestHostileInputKeepsMemoryBounded gives one machine a hundred thousand hostile actions: afterwards it uses no more
// memory than after the first tenth, except for the runtime's own variation.
func TestHostileInputKeepsMemoryBounded(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n /= 5
	}
	s := Draw(1)
	s.Actions, s.Kinds, s.Shipped = nil, nil, false
	w, err := newWorld(&s, &Plants{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.limits = limits()
	w.start()
	w.run(w.begun)
	if err := w.lead(w.now.Add(-w.limits.Grace)); err != nil {
		t.Fatal(err)
	}
	var after uint64
	for i := range n {
		w.out = Outcome{} // other tests check other promises
		w.act(drawAction(w.rnd, &s))
		w.run(w.now.Add(3 * time.Millisecond))
		if i == n/10 {
			after = inUse()
		}
	}
	if now := inUse(); now > after+after/4+1<<20 {
		t.Errorf("%d bytes in use after %d hostile actions, %d after %d", after, n/10, now, n)
	}
	runtime.KeepAlive(w)
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestPageIsOnlyWhatWasPrinted: docs/hostile-input.md is the output of a run of sufficient size without a broken
// promise.
func TestPageIsOnlyWhatWasPrinted(t *testing.T) {
	b, err := os.ReadFile("../../../docs/hostile-input.md")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := ParsePage(string(b))
	if err != nil {
		t.Fatal(err)
	}
	want, err := sum.Page()
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != want {
		t.Error("docs/hostile-input.md has other text than `make fuzz-semantics` prints: run it again")
	}
	if sum.Sequences < leastPublished || len(sum.Seeds) > 0 {
		t.Errorf("docs/hostile-input.md is of %d sequences, of which seeds %v broke a promise: want %d or more, and none", sum.Sequences,
			sum.Seeds, leastPublished)
	}
}
