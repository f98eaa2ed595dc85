package alertmanager

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	keeperTestConfig = keeperConfig{Targets: 2, Resend: time.Minute, Hold: 4 * time.Minute, Batch: 3}
	keeperStart      = time.Date(2026, 11, 21, 7, 0, 0, 0, time.UTC)
)

func after(d time.Duration) time.Time { return keeperStart.Add(d) }

func alertNamed(key string) alert {
	return alert{Key: alertKey(key), Labels: map[string]string{"node": key}, StartsAt: keeperStart.Add(-time.Hour)}
}

// textOf formats posts: the target, and each alert with its end.
func textOf(posts []post, wake time.Time) string {
	var out strings.Builder
	for _, p := range posts {
		fmt.Fprintf(&out, "%d:", p.Target)
		for _, a := range p.Alerts {
			fmt.Fprintf(&out, " %s until %s", a.Key, a.EndsAt.Sub(keeperStart))
		}
		out.WriteString("; ")
	}
	if wake.IsZero() {
		return out.String() + "never"
	}
	return out.String() + "next " + wake.Sub(keeperStart).String()
}

func expectPosts(t *testing.T, k *keeper, now time.Time, want string) []post {
	t.Helper()
	posts, wake := k.Next(now)
	if diff := cmp.Diff(want, textOf(posts, wake)); diff != "" {
		t.Fatalf("at %s: %s", now.Sub(keeperStart), diff)
	}
	return posts
}

// TestAlertFiresRepeatsAndEnds: an alert fires, is repeated, and ends.
func TestAlertFiresRepeatsAndEnds(t *testing.T) {
	k := newKeeper(keeperTestConfig)
	expectPosts(t, k, keeperStart, "never")
	k.Fire(keeperStart, alertNamed("a"))
	p := expectPosts(t, k, keeperStart, "0: a until 4m0s; 1: a until 4m0s; never")
	if s := k.State("a"); s.Done != 0 || !s.Left {
		t.Errorf("on its way: %+v", s)
	}
	expectPosts(t, k, keeperStart, "never")
	if got := k.Sent(after(time.Second), p[0], true, true, ""); len(got) != 1 || got[0] != "a" {
		t.Errorf("%v", got)
	}
	if got := k.Sent(after(time.Second), p[1], true, true, ""); got != nil {
		t.Errorf("the second that has it: %v", got)
	}
	if s := k.State("a"); s.Done != 2 {
		t.Errorf("%+v", s)
	}
	k.Release("a", true)
	expectPosts(t, k, after(2*time.Second), "next 1m1s")
	p = expectPosts(t, k, after(61*time.Second), "0: a until 5m1s; 1: a until 5m1s; never")
	k.Resolve(after(62*time.Second), alertNamed("a")) // during the repeated request
	k.Sent(after(63*time.Second), p[0], true, true, "")
	k.Sent(after(63*time.Second), p[1], true, true, "")
	if s := k.State("a"); s.Done != 0 {
		t.Errorf("what was sent before its end counts for its end: %+v", s)
	}
	p = expectPosts(t, k, after(63*time.Second), "0: a until 1m2s; 1: a until 1m2s; never")
	k.Sent(after(64*time.Second), p[0], true, true, "")
	k.Sent(after(64*time.Second), p[1], false, false, "refused")
	if s := k.State("a"); s.Done != 1 || s.Why[1] != "refused" {
		t.Errorf("%+v", s)
	}
	k.Release("a", true)
	p = expectPosts(t, k, after(65*time.Second), "1: a until 1m2s; next 2m4s")
	k.Sent(after(65*time.Second), p[0], true, true, "")
	expectPosts(t, k, after(62*time.Second+keeperTestConfig.Hold), "0: a until 1m2s; 1: a until 1m2s; never") // for slow clocks
	expectPosts(t, k, after(63*time.Second+keeperTestConfig.Hold), "never")
}

// TestFailingAlertmanagerDelaysNoOther: the keeper retries a failing Alertmanager with growing backoff and keeps serving the others.
func TestFailingAlertmanagerDelaysNoOther(t *testing.T) {
	k := newKeeper(keeperTestConfig)
	k.Fire(keeperStart, alertNamed("a"))
	now := keeperStart
	var pauses []time.Duration
	posts, _ := k.Next(now)
	k.Sent(now, posts[0], true, true, "")
	p := posts[1]
	for range 10 {
		k.Sent(now, p, false, false, "refused")
		for {
			posts, wake := k.Next(now)
			i := slices.IndexFunc(posts, func(p post) bool { return p.Target == 1 })
			for _, other := range posts {
				if other.Target == 0 {
					k.Sent(now, other, true, true, "")
				}
			}
			if i >= 0 {
				p = posts[i]
				break
			}
			if len(posts) == 0 {
				pauses = append(pauses, wake.Sub(now))
				now = wake
			}
		}
	}
	if s := k.State("a"); s.Done != 1 || s.Why[1] != "refused" {
		t.Errorf("%+v", s)
	}
	if pauses[0] != firstPause || pauses[1] != 2*firstPause || slices.Max(pauses) > keeperTestConfig.Resend {
		t.Errorf("pauses %v", pauses)
	}
}

// TestRefusedConnectionKeepsEarlierDoubt: a refused connection does not reset the doubt left by an earlier broken request.
func TestRefusedConnectionKeepsEarlierDoubt(t *testing.T) {
	k := newKeeper(keeperTestConfig)
	k.Fire(keeperStart, alertNamed("a"))
	posts, _ := k.Next(keeperStart)
	k.Sent(keeperStart, posts[0], false, false, "refused")
	k.Sent(keeperStart, posts[1], false, false, "refused")
	if s := k.State("a"); s.Left || s.Done != 0 {
		t.Errorf("%+v", s)
	}
	posts, _ = k.Next(after(time.Second))
	k.Sent(after(time.Second), posts[0], false, true, "cut")
	k.Sent(after(time.Second), posts[1], false, false, "refused")
	posts, _ = k.Next(after(time.Minute))
	for _, p := range posts {
		k.Sent(after(time.Minute), p, false, false, "refused")
	}
	if s := k.State("a"); !s.Left {
		t.Errorf("%+v", s)
	}
	k.Release("a", false)
	expectPosts(t, k, after(time.Hour), "never")
}

// TestManyAlertsGoInFewRequests: many alerts go in few requests, one in flight at a time.
func TestManyAlertsGoInFewRequests(t *testing.T) {
	k := newKeeper(keeperConfig{Targets: 1, Resend: time.Minute, Hold: 4 * time.Minute, Batch: 3})
	for _, key := range []string{"e", "d", "c", "b", "a"} {
		k.Fire(keeperStart, alertNamed(key))
	}
	p := expectPosts(t, k, keeperStart, "0: a until 4m0s b until 4m0s c until 4m0s; never")
	if got := k.Sent(keeperStart, p[0], true, true, ""); len(got) != 3 {
		t.Errorf("%v", got)
	}
	p = expectPosts(t, k, keeperStart, "0: d until 4m0s e until 4m0s; never")
	k.Sent(after(2*time.Second), p[0], true, true, "")
	p = expectPosts(t, k, after(time.Minute), "0: a until 5m0s b until 5m0s c until 5m0s; never")
	k.Sent(after(time.Minute), p[0], true, true, "")
	// d and e are due in two seconds, so they join this request.
	p = expectPosts(t, k, after(time.Minute), "next 1m2s")
	k.Fire(after(time.Minute), alertNamed("f"))
	expectPosts(t, k, after(time.Minute), "0: f until 5m0s d until 5m0s e until 5m0s; never")
	_ = p
}

// TestNewLeaderTakesOverActiveAlerts: a leader takes over standing alerts and drops others.
func TestNewLeaderTakesOverActiveAlerts(t *testing.T) {
	k := newKeeper(keeperTestConfig)
	all := func(now time.Time) string {
		posts, _ := k.Next(now)
		var out strings.Builder
		for _, p := range posts {
			if p.Target == 0 {
				for _, a := range p.Alerts {
					out.WriteString(string(a.Key))
				}
			}
			k.Sent(now, p, true, true, "")
		}
		return out.String()
	}
	k.Stand(keeperStart, []alert{alertNamed("a"), alertNamed("b")}, false)
	if got := all(keeperStart); got != "" {
		t.Errorf("who does not lead sends %q", got)
	}
	k.Stand(keeperStart, []alert{alertNamed("a"), alertNamed("b")}, true)
	if got := all(keeperStart); got != "ab" {
		t.Errorf("what the leader before has fired: %q", got)
	}
	k.Fire(keeperStart, alertNamed("c"))
	k.Stand(keeperStart, []alert{alertNamed("a"), alertNamed("b")}, true) // a Do waits for c
	if got := all(keeperStart); got != "c" {
		t.Errorf("%q", got)
	}
	k.Release("c", true)
	k.Stand(after(time.Second), []alert{alertNamed("a")}, true) // b's response is closed, and c's commit is not visible yet
	if got := all(after(time.Minute)); got != "ac" {
		t.Errorf("%q", got)
	}
	k.Stand(after(90*time.Second), []alert{alertNamed("a"), alertNamed("c")}, true)
	k.Resolve(after(100*time.Second), alertNamed("a"))
	k.Stand(after(100*time.Second), []alert{alertNamed("c")}, true)
	k.Release("a", true)
	if got := all(after(2 * time.Minute)); got != "ac" && got != "ca" {
		t.Errorf("an end is sent, too: %q", got)
	}
	k.Stand(after(150*time.Second), nil, true)
	if got := all(after(180 * time.Second)); got != "a" {
		t.Errorf("%q", got)
	}
	k.Fire(after(180*time.Second), alertNamed("d"))
	k.Stand(after(180*time.Second), []alert{alertNamed("x")}, false)
	if got := all(after(time.Hour)); got != "d" {
		t.Errorf("who leads no longer sends %q, and waits for d", got)
	}
}

// TestStandingAlertRepeatsWithNewWords: the last words of a kernel may arrive after the alert was sent. The next repetition has
// them, with the labels that the alert keeps for life. An alert that has been resolved stays resolved.
func TestStandingAlertRepeatsWithNewWords(t *testing.T) {
	k := newKeeper(keeperConfig{Targets: 1, Resend: time.Minute, Hold: 4 * time.Minute, Batch: 3})
	fired := alertNamed("a")
	fired.Annotations = map[string]string{"description": "dead"}
	k.Fire(keeperStart, fired)
	p := expectPosts(t, k, keeperStart, "0: a until 4m0s; never")
	k.Sent(keeperStart, p[0], true, true, "")
	k.Release("a", true)
	later := fired
	later.Labels = map[string]string{"node": "a", "notice": "1"}
	later.Annotations = map[string]string{"description": "dead; last kernel words: panic"}
	k.Stand(after(10*time.Second), []alert{later}, true)
	expectPosts(t, k, after(10*time.Second), "next 1m0s") // no sooner than any other repetition
	p = expectPosts(t, k, after(time.Minute), "0: a until 5m0s; never")
	got := p[0].Alerts[0]
	if want := "dead; last kernel words: panic"; got.Annotations["description"] != want {
		t.Errorf("description %q, want %q", got.Annotations["description"], want)
	}
	if !maps.Equal(got.Labels, fired.Labels) {
		t.Errorf("labels %v, want %v", got.Labels, fired.Labels)
	}
	k.Sent(after(time.Minute), p[0], true, true, "")
	k.Resolve(after(70*time.Second), fired)
	k.Stand(after(70*time.Second), []alert{later}, true) // read before the undo was committed
	expectPosts(t, k, after(70*time.Second), "0: a until 1m10s; never")
}

// fakeManager models how Alertmanager merges a known alert with a new one, and that it forgets alerts on restart.
type fakeManager struct {
	skew   time.Duration // clock offset
	down   bool
	alerts map[string]timeSpan
}

type timeSpan struct{ from, to time.Time }

func (m *fakeManager) take(now time.Time, s sending) {
	now = now.Add(m.skew)
	n := timeSpan{s.StartsAt, s.EndsAt}
	if was, ok := m.alerts[s.Labels["node"]]; ok && !was.to.Before(n.from) && !n.to.Before(was.from) {
		if was.from.Before(n.from) {
			n.from = was.from
		}
		if resolved := !n.to.After(now); !resolved && was.to.After(n.to) || resolved && !was.to.After(now) && was.to.After(n.to) {
			n.to = was.to
		}
	}
	m.alerts[s.Labels["node"]] = n
}

func (m *fakeManager) firing(now time.Time, key string) bool {
	return m.alerts[key].to.After(now.Add(m.skew))
}

// TestAlertsReachEveryLastingAlertmanager: Alertmanagers fail, restart without state and have clock offsets. A firing
// alert fires at each one that has been up for two sends. A resolved alert fires at none that has been up for as long.
// An alert that is no longer sent expires.
func TestAlertsReachEveryLastingAlertmanager(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		k := newKeeper(keeperTestConfig)
		managers := make([]*fakeManager, keeperTestConfig.Targets)
		up := make([]time.Time, keeperTestConfig.Targets)
		for i := range managers {
			managers[i] = &fakeManager{skew: time.Duration(r.IntN(60)-30) * time.Second, alerts: map[string]timeSpan{}}
			up[i] = keeperStart
		}
		since := map[string]time.Time{}
		fires := map[string]bool{}
		for now := keeperStart; now.Before(after(time.Hour)); now = now.Add(time.Duration(1+r.IntN(20)) * time.Second) {
			switch key := string(rune('a' + r.IntN(5))); r.IntN(12) {
			case 0:
				if !fires[key] {
					k.Fire(now, alert{Key: alertKey(key), Labels: map[string]string{"node": key}, StartsAt: now})
					k.Release(alertKey(key), true)
					fires[key], since[key] = true, now
				}
			case 1:
				if fires[key] {
					k.Resolve(now, alert{Key: alertKey(key), Labels: map[string]string{"node": key}})
					k.Release(alertKey(key), true)
					fires[key], since[key] = false, now
				}
			case 2:
				i := r.IntN(len(managers))
				if m := managers[i]; m.down {
					m.down, up[i], m.alerts = false, now, map[string]timeSpan{}
				} else {
					m.down = true
				}
			default:
			}
			posts, _ := k.Next(now)
			for _, p := range posts {
				m := managers[p.Target]
				if m.down {
					k.Sent(now, p, false, r.IntN(2) == 0, "down")
					continue
				}
				for _, a := range p.Alerts {
					m.take(now, a)
				}
				k.Sent(now, p, true, true, "")
			}
			settled := 2*keeperTestConfig.Resend + 30*time.Second
			for i, m := range managers {
				for key, fires := range fires {
					if !m.down && now.Sub(up[i]) > settled && now.Sub(since[key]) > settled && m.firing(now, key) != fires {
						t.Fatalf("seed %d, %s: manager %d with skew %s: %s fires %t, want %t", seed, now.Sub(keeperStart), i, m.skew, key, !fires, fires)
					}
				}
			}
		}
		for i, m := range managers {
			for key := range fires {
				if end := after(time.Hour + keeperTestConfig.Hold + 30*time.Second); m.firing(end, key) {
					t.Fatalf("seed %d: nobody sends %s any more, and it fires at manager %d", seed, key, i)
				}
			}
		}
	}
}

// TestEndOfAlertSparesOneWithSameLabels: Alertmanager takes alerts with the same labels for one, so the end of one must
// not end another that fires.
func TestEndOfAlertSparesOneWithSameLabels(t *testing.T) {
	one := keeperConfig{Targets: 1, Resend: time.Minute, Hold: 4 * time.Minute, Batch: 3}
	of := func(key string) alert {
		return alert{Key: alertKey(key), Labels: map[string]string{"node": "n"}, StartsAt: keeperStart}
	}
	sent := func(k *keeper, now time.Time, posts []post) {
		for _, p := range posts {
			k.Sent(now, p, true, true, "")
		}
	}
	k := newKeeper(one)
	k.Fire(keeperStart, of("r5"))
	sent(k, keeperStart, expectPosts(t, k, keeperStart, "0: r5 until 4m0s; never"))
	k.Release("r5", true)
	k.Resolve(after(time.Second), of("r5"))
	sent(k, after(time.Second), expectPosts(t, k, after(time.Second), "0: r5 until 1s; never"))
	k.Release("r5", true)

	// The fault returns: the end is not sent again.
	k.Fire(after(30*time.Second), of("r6"))
	sent(k, after(30*time.Second), expectPosts(t, k, after(30*time.Second), "0: r6 until 4m30s; never"))
	k.Release("r6", true)
	expectPosts(t, k, after(61*time.Second), "next 1m30s")

	// Another response with the same labels starts and ends meanwhile. The Do that waits for its end gets it, and the
	// firing alert follows.
	k.Fire(after(62*time.Second), of("r7"))
	sent(k, after(62*time.Second), expectPosts(t, k, after(62*time.Second), "0: r7 until 5m2s; never"))
	k.Release("r7", true)
	k.Resolve(after(63*time.Second), of("r7"))
	sent(k, after(63*time.Second), expectPosts(t, k, after(63*time.Second), "0: r7 until 1m3s r6 until 5m3s; never"))
	if s := k.State("r7"); s.Done != 1 {
		t.Errorf("%+v", s)
	}
	k.Release("r7", true)
	expectPosts(t, k, after(64*time.Second), "next 2m3s")
	if s := k.State("r7"); s.Why != nil {
		t.Errorf("its end is kept: %+v", s)
	}
}

// TestEndHasLabelsOfItsAlert: the end of an alert has the labels with which it fires, since Alertmanager would take others for another
// alert.
func TestEndHasLabelsOfItsAlert(t *testing.T) {
	k := newKeeper(keeperTestConfig)
	fires := alertNamed("a")
	fires.Labels = map[string]string{"node": "n", "notice": "2"}
	k.Fire(keeperStart, fires)
	for _, p := range expectPosts(t, k, keeperStart, "0: a until 4m0s; 1: a until 4m0s; never") {
		k.Sent(keeperStart, p, true, true, "")
	}
	k.Release("a", true)
	end := alertNamed("a")
	end.Labels = map[string]string{"node": "n"}
	k.Resolve(after(time.Second), end)
	for _, p := range expectPosts(t, k, after(time.Second), "0: a until 1s; 1: a until 1s; never") {
		if got := p.Alerts[0].Labels; !maps.Equal(got, fires.Labels) {
			t.Errorf("the end has the labels %v: want %v", got, fires.Labels)
		}
	}
}

// TestAnswerToDroppedAlertConfirmsNoEnd: an Alertmanager's answer to an abandoned alert does not confirm the alert's end, even though the
// keeper had dropped the alert.
func TestAnswerToDroppedAlertConfirmsNoEnd(t *testing.T) {
	k := newKeeper(keeperConfig{Targets: 1, Resend: time.Minute, Hold: 4 * time.Minute, Batch: 3})
	k.Fire(keeperStart, alertNamed("a"))
	p := expectPosts(t, k, keeperStart, "0: a until 4m0s; never")
	k.Release("a", false)
	k.Resolve(after(time.Second), alertNamed("a"))
	if got := k.Sent(after(2*time.Second), p[0], true, true, ""); got != nil {
		t.Errorf("%v have their end by what was sent before", got)
	}
	p = expectPosts(t, k, after(2*time.Second), "0: a until 1s; never")
	if got := k.Sent(after(3*time.Second), p[0], true, true, ""); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

// TestClockStepBackLeavesAlertsValid: after the wall clock steps back, no alert ends before it starts, because Alertmanager refuses the
// whole request then. No resolved alert ends in the future, which would make it fire.
func TestClockStepBackLeavesAlertsValid(t *testing.T) {
	k := newKeeper(keeperConfig{Targets: 1, Resend: time.Minute, Hold: 4 * time.Minute, Batch: 4})
	for _, key := range []string{"begun later", "begun", "both later", "end later"} {
		k.Fire(keeperStart, alertNamed(key))
	}
	k.Resolve(keeperStart, alertNamed("both later"))
	k.Resolve(keeperStart, alertNamed("end later"))
	k.alerts["begun later"].StartsAt = after(time.Hour)
	k.alerts["both later"].StartsAt, k.alerts["both later"].resolved = after(time.Hour), after(2*time.Hour)
	k.alerts["end later"].resolved = after(time.Hour)
	posts := expectPosts(t, k, keeperStart, "0: begun until 4m0s begun later until 4m0s both later until 0s end later until 0s; never")
	for _, s := range posts[0].Alerts {
		want := keeperStart
		if s.Key == "begun" || s.Key == "end later" {
			want = after(-time.Hour)
		}
		if !s.StartsAt.Equal(want) {
			t.Errorf("%s starts at %s: want %s", s.Key, s.StartsAt.Sub(keeperStart), want.Sub(keeperStart))
		}
	}
}

// TestClockStepBackIsSeenDespiteMonotonicTime: the times of an alert come from the wall clock, which is what Alertmanager gets.
func TestClockStepBackIsSeenDespiteMonotonicTime(t *testing.T) {
	k := newKeeper(keeperConfig{Targets: 1, Resend: time.Minute, Hold: 4 * time.Minute, Batch: 4})
	now := time.Now() // with a monotonic reading, as in the executor
	k.Fire(now, alert{Key: "fires", StartsAt: now})
	k.Resolve(now, alert{Key: "ends", StartsAt: now})
	posts, _ := k.Next(now)
	for _, s := range posts[0].Alerts {
		for _, at := range []time.Time{s.StartsAt, s.EndsAt} {
			if at != at.Round(0) {
				t.Errorf("%s: time %s has a monotonic reading", s.Key, at)
			}
		}
	}
}
