package process

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func effect(token uint64, id string, step, attempt int) response.Effect {
	return response.Effect{
		Attempt: response.Attempt{Response: id, Step: step, Attempt: attempt}, Token: token, Kind: response.Command,
		Target: response.Target{Node: "n1", Component: fault.ComponentHost}, IdempotencyKey: id, Timeout: time.Minute,
	}
}

// TestLedgerRefusesOldTokensAndAttempts: lower tokens and old attempt numbers are refused after any sequence, and the
// same holds for a ledger read back from disk.
func TestLedgerRefusesOldTokensAndAttempts(t *testing.T) {
	l := newLedger("c")
	steps := []struct {
		token         uint64
		response      string
		step, attempt int
		want          verdict
	}{
		{5, "r5-1", 0, 1, begin},
		{5, "r5-1", 0, 1, same},
		{5, "r5-1", 1, 1, begin}, // another step
		{5, "r5-2", 0, 1, begin}, // another response
		{5, "r5-1", 0, 3, begin},
		{5, "r5-1", 0, 2, late},
		{5, "r5-1", 0, 3, same},
		{4, "r4-1", 0, 1, stale},
		{6, "r5-1", 0, 4, begin},
		{5, "r5-1", 0, 5, stale},
		{6, "r5-1", 0, 3, late}, // from an earlier leader: the numbers continue
		{7, "r5-1", 0, 4, same},
		{6, "r6-1", 0, 1, stale}, // a token counts even if its attempt was not new
	}
	for i, s := range steps {
		if v := l.admit(start, effect(s.token, s.response, s.step, s.attempt)); v != s.want {
			t.Errorf("%d: %+v: verdict %d", i, s, v)
		}
		b, err := l.encode()
		if err != nil {
			t.Fatal(err)
		}
		if l, err = decodeLedger(b); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEndedAttemptsAreForgotten(t *testing.T) {
	l := newLedger("c")
	up := time.Duration(0)
	l.up = func() time.Duration { return up }
	l.admit(start, effect(1, "a", 0, 1))
	l.admit(start, effect(1, "b", 0, 1))
	l.end(start, response.Attempt{Response: "a", Attempt: 2}, response.Succeeded, "another attempt")
	if l.entries[stepKey{"a", 0}].ended() {
		t.Error("an attempt ended by another's end")
	}
	l.end(start, response.Attempt{Response: "a", Attempt: 1}, response.Succeeded, "")
	if n := l.interrupt(start.Add(time.Second)); n != 1 || l.entries[stepKey{"b", 0}].Outcome != response.NotKnown ||
		l.entries[stepKey{"a", 0}].Outcome != response.Succeeded {
		t.Errorf("%d interrupted: %+v", n, l.entries)
	}
	up = keep
	l.admit(start.Add(keep), effect(1, "c", 0, 1))
	if len(l.entries) != 3 {
		t.Errorf("forgotten too early: %+v", l.entries)
	}
	up += sweep
	l.admit(start.Add(keep+sweep), effect(1, "d", 0, 1))
	if _, ok := l.entries[stepKey{"a", 0}]; ok || len(l.entries) != 2 {
		t.Errorf("not forgotten, or too much: %+v", l.entries)
	}
}

// TestClockThatJumpsForgetsNoAttempt: a host starts with a clock that is days behind, and corrects it soon after an attempt. The process
// still knows the attempt when a leader asks for it, also after a restart. It forgets it once no leader asks any more.
func TestClockThatJumpsForgetsNoAttempt(t *testing.T) {
	l, up := newLedger("c"), time.Duration(0)
	l.up = func() time.Duration { return up }
	l.admit(start, effect(1, "a", 0, 1))
	up = time.Minute
	l.end(start.Add(up), response.Attempt{Response: "a", Attempt: 1}, response.Succeeded, "")
	right := start.Add(3 * keep)
	knows := func(want bool) {
		t.Helper()
		l.admit(right.Add(up), effect(1, "other "+up.String(), 0, 1))
		if _, known := l.entries[stepKey{"a", 0}]; known != want {
			t.Errorf("up for %s: the attempt is known: %t", up, known)
		}
	}
	up = 12 * time.Hour
	knows(true)
	b, err := l.encode()
	if err != nil {
		t.Fatal(err)
	}
	if l, err = decodeLedger(b); err != nil {
		t.Fatal(err)
	}
	l.up, up = func() time.Duration { return up }, time.Minute
	knows(true)
	up = askedFor + time.Minute
	knows(false)
}

// TestFullLedgerAdmitsNoNewStep: a full ledger admits no new step, continues with known steps, and refuses stale tokens.
func TestFullLedgerAdmitsNoNewStep(t *testing.T) {
	l := newLedger("c")
	for i := range maxEntries {
		l.admit(start, effect(1, fmt.Sprint(i), 0, 1))
	}
	for _, tc := range []struct {
		e    response.Effect
		want verdict
	}{{effect(2, "new", 0, 1), crowded}, {effect(2, "7", 0, 2), begin}, {effect(1, "8", 0, 2), stale}} {
		if v := l.admit(start, tc.e); v != tc.want {
			t.Errorf("%+v: verdict %d, want %d", tc.e.Attempt, v, tc.want)
		}
	}
	b, err := l.encode()
	if err != nil || len(b) > maxLedger/2 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// TestLedgerOfOddTextsFitsItsReader: a full ledger whose texts have characters that JSON escapes is not longer than its reader accepts.
// Requests with texts that could make it longer are refused.
func TestLedgerOfOddTextsFitsItsReader(t *testing.T) {
	for odd, refused := range map[string]bool{"n": false, "<": false, `"`: false, "語": false, "\u2028": true, "\x01": true, "\xff": true} {
		name := strings.Repeat(odd, maxName/len(odd))
		for _, target := range []*lofamov1.ExecutorTarget{{Node: name, Component: "host"}, {Group: name}} {
			job, err := jobOf(&lofamov1.ExecutorDoRequest{
				Attempt:        &lofamov1.ExecutorAttempt{Response: name, Step: math.MaxInt16, Attempt: math.MaxInt32, Token: math.MaxUint64},
				IdempotencyKey: "k", Kind: string(response.Command), Cluster: "c", TimeoutMs: 1, Target: target,
			}, "c")
			if refused != (err != nil) {
				t.Errorf("%q: %v: want a refusal: %t", odd, err, refused)
			}
			if err != nil {
				continue
			}
			l := newLedger("c")
			l.admit(start, job.Effect)
			l.end(start, job.Attempt, response.Succeeded, executor.Done("%s", strings.Repeat(odd, executor.MaxDetail)).Detail)
			if b, err := l.encode(); err != nil || len(b) > maxLedger/maxEntries {
				t.Errorf("%q: %d bytes for one attempt, %v: want at most %d", odd, len(b), err, maxLedger/maxEntries)
			} else if _, err := decodeLedger(b); err != nil {
				t.Errorf("%q: %v", odd, err)
			}
		}
		a := &lofamov1.ExecutorAttempt{Response: name, Attempt: 1, Token: 1}
		if _, _, err := attemptOf(a); refused != (err != nil) {
			t.Errorf("%q in a query: %v: want a refusal: %t", odd, err, refused)
		}
	}
}

// TestQueriedAttemptIsRefusedOnArrival: an attempt whose outcome was queried before it arrived is refused on arrival,
// and its step continues.
func TestQueriedAttemptIsRefusedOnArrival(t *testing.T) {
	l := newLedger("c")
	l.forbid(start, response.Attempt{Response: "a", Attempt: 2}, 3, response.Unchanged, "it never came")
	if e := l.entries[stepKey{"a", 0}]; e.Outcome != response.Unchanged {
		t.Errorf("%+v", e)
	}
	l.token = 3
	for attempt, want := range map[int]verdict{1: late, 2: same} {
		if v := l.admit(start, effect(3, "a", 0, attempt)); v != want {
			t.Errorf("attempt %d: verdict %d, want %d", attempt, v, want)
		}
	}
	if v := l.admit(start, effect(3, "a", 0, 3)); v != begin {
		t.Errorf("the next attempt: verdict %d", v)
	}
}

// TestLedgerWithAnyChangeIsRefused: a file with any change is rejected.
func TestLedgerWithAnyChangeIsRefused(t *testing.T) {
	l := newLedger("c")
	l.admit(start, effect(9, "r", 0, 1))
	good, err := l.encode()
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		for _, bit := range []byte{0x01, 0x20} {
			b := append([]byte{}, good...)
			b[i] ^= bit
			if _, err := decodeLedger(b); err == nil {
				t.Fatalf("byte %d with bit %#x flipped is taken: %q", i, bit, b)
			}
		}
		if _, err := decodeLedger(good[:i]); err == nil {
			t.Fatalf("the first %d bytes are taken", i)
		}
	}
	if _, err := decodeLedger(append(good, '\n')); err == nil {
		t.Error("a longer file is taken")
	}
}

// FuzzDecodeLedger: an accepted ledger is the same after encoding and decoding it again. The test fixes the checksum to
// reach the decoder.
func FuzzDecodeLedger(f *testing.F) {
	l := newLedger("c")
	l.admit(start, effect(9, "r", 0, 1))
	good, _ := l.encode()
	_, body, _ := bytes.Cut(good, []byte("\n"))
	f.Add(body)
	f.Add(
		[]byte(
			`{"cluster":"c","token":7,"attempts":[{"response":"r","step":1,"attempt":2,"token":7,"began":"2026-01-02T03:04:05Z",` +
				`"ended":"2026-01-02T03:04:06Z","outcome":4}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		sum := sha256.Sum256(body)
		l, err := decodeLedger(append([]byte(magic+hex.EncodeToString(sum[:])+"\n"), body...))
		if err != nil {
			return
		}
		again, err := l.encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeLedger(again)
		if err != nil || back.token != l.token || back.cluster != l.cluster || !cmp.Equal(back.entries, l.entries) {
			t.Errorf("%q reads as %+v, and that as %+v, %v", body, l, back, err)
		}
	})
}

// TestLockOutlivesItsProcessForAMoment: a process that ends may leave a forked child with its lock. The next process waits until that child
// has let the lock go.
func TestLockOutlivesItsProcessForAMoment(t *testing.T) {
	dir := t.TempDir()
	ended, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(ended.Fd(), unix.F_DUPFD_CLOEXEC, 0) // the child's copy
	if err != nil {
		t.Fatal(err)
	}
	if err := ended.Close(); err != nil {
		t.Fatal(err)
	}
	child := os.NewFile(uintptr(fd), "lock")
	defer time.AfterFunc(lockWait/10, func() { _ = child.Close() }).Stop()
	next, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = next.Close()
}

// TestProcessOpensOwnIntactLedgerOnly: a process starts only with its own intact ledger, and with no other process using it.
func TestProcessOpensOwnIntactLedgerOnly(t *testing.T) {
	dir := t.TempDir()
	refused := func(cluster, want string) {
		t.Helper()
		if d, _, err := open(dir, cluster, start); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("opened %v, %v: want %q", d, err, want)
		}
	}
	refused("c", "not found")
	if _, err := Init(dir, "c", false, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := Init(dir, "c", false, time.Now()); err == nil || !strings.Contains(err.Error(), "--forget") {
		t.Errorf("made twice: %v", err)
	}
	refused("another", `of cluster "c"`)
	d, n, err := open(dir, "c", start)
	if err != nil || n != 0 {
		t.Fatal(n, err)
	}
	refused("c", "another executor process")
	if _, err := Init(dir, "c", true, time.Now()); err == nil {
		t.Error("the ledger of a process that runs is replaced")
	}
	var v verdict
	if err := d.commit(d.change(func(l *ledger) bool { v = l.admit(start, effect(7, "r", 0, 1)); return true })); err != nil || v != begin {
		t.Fatal(v, err)
	}
	// A change that is not committed is lost at the end of the process.
	d.change(func(l *ledger) bool { return l.admit(start, effect(8, "r", 0, 2)) == begin })
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	if err := d.commit(d.version); err == nil {
		t.Error("a ledger that another may have by now is written")
	}
	d, n, err = open(dir, "c", start)
	if err != nil || n != 1 || d.token() != 7 {
		t.Fatalf("%d interrupted, token %d, %v", n, d.token(), err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, ledgerFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("c", "the checksum is wrong")
	if was, err := Init(dir, "c", true, time.Now()); err != nil || !strings.Contains(was, "checksum") {
		t.Errorf("%q, %v", was, err)
	}
}

// TestFailedWriteClosesLedger: after a failed write the ledger accepts nothing, even if the next write would succeed.
func TestFailedWriteClosesLedger(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(dir, "c", false, time.Now()); err != nil {
		t.Fatal(err)
	}
	d, _, err := open(dir, "c", start)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.close() }()
	var lost []error
	d.lost = func(err error) { lost = append(lost, err) }
	in := filepath.Join(dir, ledgerFile+".new")
	if err := os.Mkdir(in, 0o700); err != nil { // blocks the new file
		t.Fatal(err)
	}
	admit := func(attempt int) error {
		return d.commit(d.change(func(l *ledger) bool { return l.admit(start, effect(1, "r", 0, attempt)) == begin }))
	}
	if admit(1) == nil {
		t.Fatal("written")
	}
	if err := os.Remove(in); err != nil {
		t.Fatal(err)
	}
	if err := admit(2); err == nil || !strings.Contains(err.Error(), errBroken.Error()) {
		t.Errorf("%v", err)
	}
	if len(lost) != 1 || !errors.Is(lost[0], errBroken) {
		t.Errorf("told of %v, want it once", lost)
	}
}
