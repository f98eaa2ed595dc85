package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/bench/compare"
	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// all has every observer declare a member.
func all(b *board, member int, alive bool, at int64) {
	for o := range b.knows {
		b.saw(o, member, alive, at)
	}
}

func completeBoard(t *testing.T, members int) *board {
	t.Helper()
	b := newBoard(members)
	for m := range members {
		all(b, m, true, 1)
	}
	if err := b.waitComplete(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestKillCountsFromFirstToLastSurvivingObserver(t *testing.T) {
	b := completeBoard(t, 4)
	b.kill(2, 1000)
	b.saw(1, 2, false, 3000)
	b.saw(0, 2, false, 5000)
	b.saw(2, 2, false, 1500) // the victim's own watch does not count
	if k, final := b.result(2); final || k.First != 2000 || k.All != compare.Missed {
		t.Errorf("before the last observer: %+v, final %v", k, final)
	}
	b.saw(3, 2, false, 9000)
	b.saw(1, 2, false, 9500) // a repetition
	got, err := b.waitKnown(t.Context(), []int{2})
	if want := []compare.Kill{{Member: 2, First: 2000, All: 8000}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v: want %+v", got, err, want)
	}
	if b.falseDeaths() != 0 {
		t.Errorf("%d false deaths", b.falseDeaths())
	}
}

// TestLateWatchOfVictimSeesNoFalseDeath: a killed member is restarted without waiting for its own watch, so that watch may report the
// death after the restart.
func TestLateWatchOfVictimSeesNoFalseDeath(t *testing.T) {
	b := completeBoard(t, 3)
	b.kill(2, 1000)
	b.saw(0, 2, false, 2000)
	b.saw(1, 2, false, 3000)
	b.restart(2)
	b.saw(0, 2, true, 4000)
	b.saw(1, 2, true, 5000)
	if err := b.waitComplete(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.saw(2, 2, false, 6000)
	if n := b.falseDeaths(); n != 0 {
		t.Errorf("%d false deaths", n)
	}
	b.saw(1, 2, false, 7000)
	if n := b.falseDeaths(); n != 1 {
		t.Errorf("after another observer declares it dead: %d false deaths, want 1", n)
	}
	b.saw(0, 0, false, 8000)
	if n := b.falseDeaths(); n != 2 {
		t.Errorf("after the watch of a member that was never killed declares it dead: %d false deaths, want 2", n)
	}
}

// TestKillWaitsUntilAllHoldMemberAlive: who is held dead already would be known dead after 0 ms.
func TestKillWaitsUntilAllHoldMemberAlive(t *testing.T) {
	b := completeBoard(t, 3)
	b.saw(1, 2, false, 500)
	if b.kill(2, 1000) || b.status[2] != up {
		t.Error("a member is killed that observer 1 holds dead")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.waitAlive(ctx, 2); err == nil || !strings.Contains(err.Error(), "1 does not know 2 alive") {
		t.Errorf("a wait for a member that is held dead: %v", err)
	}
	b.saw(1, 2, true, 1500)
	if err := b.waitAlive(t.Context(), 2); err != nil || !b.kill(2, 2000) {
		t.Errorf("a member that all hold alive is not killed: %v", err)
	}
	b.saw(0, 2, false, 2500)
	b.saw(1, 2, false, 3000)
	if k, final := b.result(2); !final || k.First != 500 || k.All != 1000 {
		t.Errorf("%+v, final %v", k, final)
	}
}

func TestKillBeyondLimitIsMissed(t *testing.T) {
	b := completeBoard(t, 3)
	b.kill(0, 1000)
	b.saw(1, 0, false, 2000)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, err := b.waitKnown(ctx, []int{0})
	if want := []compare.Kill{{Member: 0, First: 1000, All: compare.Missed}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v: want %+v", got, err, want)
	}
}

func TestFalseDeathIsCountedOnceUntilAllKnowBetter(t *testing.T) {
	b := completeBoard(t, 3)
	b.saw(0, 1, false, 10)
	b.saw(2, 1, false, 11)
	b.saw(0, 1, true, 12)
	b.saw(0, 1, false, 13)
	if n := b.falseDeaths(); n != 1 {
		t.Errorf("one episode counts as %d", n)
	}
	all(b, 1, true, 14)
	b.saw(0, 1, false, 15)
	if n := b.falseDeaths(); n != 2 {
		t.Errorf("two episodes count as %d", n)
	}
	b.halfFailed(1, int64(time.Hour))
	b.kill(2, 20)
	b.halfFailed(2, int64(time.Hour))
	b.saw(2, 0, false, 21) // a dead observer
	b.restart(2)
	b.saw(0, 2, false, 22) // a late declaration, before all know the new life
	if n := b.falseDeaths(); n != 3 {
		t.Errorf("%d false deaths: want 3, the last of a half", n)
	}
}

func TestRestartedMemberMustBeKnownByAll(t *testing.T) {
	b := completeBoard(t, 2)
	b.kill(0, 1)
	b.saw(1, 0, false, 2)
	b.restart(0)
	b.forget(0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.waitComplete(ctx); err == nil || !strings.Contains(err.Error(), "1 does not know 0 alive") {
		t.Errorf("complete with an observer that knows the old life: %v", err)
	}
	all(b, 0, true, 3)
	all(b, 1, true, 3)
	if err := b.waitComplete(t.Context()); err != nil {
		t.Error(err)
	}
	b.fail(errors.New("no more events"))
	if err := b.waitComplete(t.Context()); err == nil || err.Error() != "no more events" {
		t.Errorf("a failed observer: %v", err)
	}
}

// A daemon would restart its child if it outlived the child.
func TestKillSessionLeavesNoProcess(t *testing.T) {
	read, write := io.Pipe()
	// The shell starts a new child whenever its child ends.
	cmd, err := session(io.Discard, write, "sh", "-c", "while :; do sleep 60 & echo $!; wait; done")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(read)
	if !lines.Scan() { // the first child runs
		t.Fatal(lines.Err())
	}
	id := cmd.Process.Pid
	go func() { _, _ = io.Copy(io.Discard, read) }()
	if err := killSession(id); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	// A killed process closes its files and leaves its parent before it has ended.
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		living, err := living(id)
		if err != nil {
			t.Fatal(err)
		}
		if len(living) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("processes of the session live: %q", living)
		}
	}
	if err := killSession(id); err == nil {
		t.Error("a session without processes is killed again")
	}
}

// living returns the states of a session's processes that have not ended.
func living(session int) (states []string, err error) {
	pids, err := processes()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if sid, err := unix.Getsid(pid); err != nil || sid != session {
			continue
		}
		if u, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(u), ") Z ") {
			states = append(states, string(u))
		}
	}
	return states, nil
}

func TestParseEvent(t *testing.T) {
	if m, alive, at, err := parseEvent("dead 7 123"); m != 7 || alive || at != 123 || err != nil {
		t.Errorf("%d %v %d %v", m, alive, at, err)
	}
	for _, bad := range []string{"", "dead 7", "gone 7 1", "dead x 1", "dead 7 x"} {
		if _, _, _, err := parseEvent(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestParseSentBytes(t *testing.T) {
	const text = "Inter-|   Receive  |  Transmit\n face |bytes packets\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n" +
		"    lo: 100 2 0 0 0 0 0 0 4711 2 0 0 0 0 0 0\n"
	if n, err := parseSent([]byte(text)); n != 4711 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, bad := range []string{"", "lo: 1 2", "lo: 1 2 3 4 5 6 7 8 x"} {
		if _, err := parseSent([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestParseRefusesBadFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"-plan 9:0":       "members 9: want 8, 16, 27, 32 or 64",
		"-plan 8":         `plan "8": want MEMBERS:LOAD`,
		"-plan 8:300":     "loops 300: want 0 to 256",
		"-plan 8:91%":     "loss 91: want 1 to 90",
		"-kills 0":        "kills 0: want 1 to 1000",
		"-limit 1ms":      "limit 1ms: want 1s to 10m0s",
		"-systems raft":   `systems: "raft": want some of`,
		"-lanes sideways": "lanes sideways",
		"-missing":        "missing: want a record",
		"more":            `arguments ["more"]`,
	} {
		if _, err := parse(strings.Fields(flags)); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `lanes "s`, "lanes s"), want) {
			t.Errorf("%s: %v: want %q", flags, err, want)
		}
	}
	o, err := parse([]string{"-short"})
	if err != nil || o.kills != 5 || !slices.Equal(o.plan, []compare.Condition{{Members: 8}}) || o.lanes != allOnce {
		t.Errorf("short: %+v, %v", o, err)
	}
}

func TestRunContinuesItsRecord(t *testing.T) {
	record := filepath.Join(t.TempDir(), "record.json")
	o := options{record: record}
	system := func(name string) compare.Run {
		return compare.Run{Pieces: []compare.Piece{{Commit: name}}, Systems: []compare.System{{Name: name}}}
	}
	earlier, err := resume(o, system(serfLAN))
	if err != nil {
		t.Fatal(err)
	}
	earlier.Add(compare.Cell{System: serfLAN, Members: 8})
	if err := write(o, earlier); err != nil {
		t.Fatal(err)
	}
	r, err := resume(o, system(ourName))
	if err != nil || len(r.Cells) != 1 || len(r.Systems) != 2 || r.Systems[0].Name != ourName || r.Now().Commit != ourName {
		t.Errorf("%+v, %v: want our systems before serf and its cell, and a piece of our own", r, err)
	}
	o.fresh = true
	if r, err := resume(o, system(ourName)); err != nil || len(r.Cells) != 0 || len(r.Pieces) != 1 {
		t.Errorf("a new record: %+v, %v", r, err)
	}
	o.fresh = false
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := resume(o, system(ourName)); err == nil {
		t.Error("a broken record is overwritten")
	}
}

// A piece with -missing measures no cell that the record has, and begins none when its time is over.
func TestMissingLeavesMeasuredCells(t *testing.T) {
	plan := compare.Plan()[:1]
	r := compare.Run{Pieces: []compare.Piece{{Begun: time.Now()}}, Systems: []compare.System{{Name: serfLAN}}}
	r.Add(compare.Cell{System: serfLAN, Members: plan[0].Members, Note: "measured"})
	for _, o := range []options{{plan: plan, lanes: alone, missing: true, whole: time.Hour}, {plan: plan, lanes: alone, whole: -1}} {
		if err := cells(t.Context(), o, &r, []string{serfLAN}); err != nil || len(r.Cells) != 1 || r.Cells[0].Note != "measured" {
			t.Errorf("%+v, %v", r.Cells, err)
		}
	}
}

func TestLanesSeparateOursFromPeers(t *testing.T) {
	systems := []string{ourName, serfLAN, consulName}
	for how, want := range map[string]string{
		alone: "[[LO|FA|MO] [serf] [consul]]", peersOnce: "[[LO|FA|MO] [serf consul]]", allOnce: "[[LO|FA|MO serf consul]]",
	} {
		if got := fmt.Sprint(lanes(how, compare.Load{Loss: 20}, systems)); got != want {
			t.Errorf("%s: %s: want %s", how, got, want)
		}
		if got := lanes(how, compare.Load{Loops: 4}, systems); len(got) != 3 {
			t.Errorf("%s with busy loops of each cell: %s: want each system alone", how, got)
		}
	}
}

// TestShortRunComparesRealSystems builds this program and runs the short form: real processes of every system that this
// machine has, killed for real. Consul runs only if its program is given.
func TestShortRunComparesRealSystems(t *testing.T) {
	if testing.Short() {
		return // a run takes a minute
	}
	if os.Geteuid() != 0 {
		requirements.Missing(t, "not root: cells need namespaces of their own")
	}
	requirements.Set(t, "make build", "LOFAMO_BIN_DIR")
	requirements.Program(t, "package iproute2", "ip")
	requirements.Program(t, "package nftables", "nft")
	if _, err := kubetest.Programs(); err != nil {
		requirements.Missing(t, "%v", err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "lofamo-compare")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	record := filepath.Join(dir, "record.json")
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-short", "-record", record, "-out", filepath.Join(dir, "page.md"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	r, err := compare.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{ourName, memberlistLAN, memberlistTuned, serfLAN, kubernetesName}
	for _, name := range want {
		i := slices.IndexFunc(r.Cells, func(c compare.Cell) bool { return c.System == name })
		if i < 0 {
			t.Errorf("%s did not run: %q", name, r.LeftOut)
			continue
		}
		c := r.Cells[i]
		known := slices.ContainsFunc(c.Kills, func(k compare.Kill) bool { return k.First > 0 && k.All >= k.First })
		if c.Failure != "" || len(c.Kills) == 0 || !known || c.Bytes <= 0 || c.Memory <= 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
}
