// The keeper decides which alerts go to which Alertmanager, and when. An Alertmanager forgets an alert that is not sent
// again before its end: so each alert is sent with an end some way ahead, and again, well before that, for as long as it
// stands. This file is pure; run.go posts, waits and asks for standing alerts.
//
// Each Alertmanager of a cluster gets everything, and is retried by itself: they tell one another of notifications, not of alerts.
// What is resolved is sent again, too, until the end that was sent last while it fired is past: an Alertmanager whose clock is
// behind takes an end that has just come for one that is still to come, and keeps the later of the two.
//
// To an Alertmanager alerts of the same labels are one, whatever response they are of. So the end of one is not sent again once
// another fires, and where it has to be sent, the one that fires is sent behind it.

package alertmanager

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// alertKey names an alert: the response and the step that it is for.
type alertKey string

// alert is one alert to send. Nobody changes its maps.
type alert struct {
	Key         alertKey
	Labels      map[string]string
	Annotations map[string]string
	StartsAt    time.Time
}

// keeperConfig holds the targets and the times.
type keeperConfig struct {
	Targets int           // how many Alertmanagers there are
	Resend  time.Duration // from one sending of an alert to the next
	Hold    time.Duration // by which the end that is sent is ahead; more than Resend
	Batch   int           // alerts in one request
}

// firstPause after a failed request; it doubles up to Resend.
const firstPause = 500 * time.Millisecond

// keeper holds what is to be sent. Its owner alone uses it.
type keeper struct {
	cfg     keeperConfig
	alerts  map[alertKey]*heldAlert
	targets []target
	changes int // by Fire, Resolve and Stand
}

type heldAlert struct {
	alert
	resolved time.Time // zero: it fires
	change   int       // of Keeper.changes, so that an answer to what was sent before is known
	fired    time.Time // by Fire, since when
	awaited  bool      // somebody waits for it
	stands   bool      // it was among what Stand has said
	at       []place   // by target
}

// place is an alert at one target.
type place struct {
	due    time.Time // when it is to be sent next
	done   bool      // the target has it as it is now
	left   bool      // it may have it as it is now
	flying bool      // a request with it is under way
}

type target struct {
	busy     bool
	failures int
	pause    time.Time // until when nothing is sent
	why      string    // it has failed
}

// newKeeper returns a keeper of nothing.
func newKeeper(cfg keeperConfig) *keeper {
	return &keeper{cfg: cfg, alerts: map[alertKey]*heldAlert{}, targets: make([]target, cfg.Targets)}
}

// post is one request. Its owner gives back what became of it, by Sent.
type post struct {
	Target int
	Alerts []sending
}

// sending is one alert of a request.
type sending struct {
	alert
	EndsAt time.Time // in the past of a resolved one
	change int
}

// Fire has an alert sent from now on. Somebody waits until one Alertmanager has it.
func (k *keeper) Fire(now time.Time, a alert) {
	if a.StartsAt.IsZero() || a.StartsAt.After(now) {
		a.StartsAt = now
	}
	n := k.put(now, a)
	n.fired, n.awaited = now, true
	k.dropEnds(n)
}

// dropEnds forgets the ends of alerts of the same labels as one that fires, but for those that somebody waits for.
func (k *keeper) dropEnds(fires *heldAlert) {
	for key, a := range k.alerts {
		if !a.resolved.IsZero() && !a.awaited && maps.Equal(a.Labels, fires.Labels) {
			delete(k.alerts, key)
		}
	}
}

// firing returns the alerts that fire with the labels of another, by key.
func (k *keeper) firing(labels map[string]string) []*heldAlert {
	var out []*heldAlert
	for _, a := range k.alerts {
		if a.resolved.IsZero() && maps.Equal(a.Labels, labels) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b *heldAlert) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// Resolve has its end sent. Somebody waits until one Alertmanager has it.
func (k *keeper) Resolve(now time.Time, a alert) {
	if was := k.alerts[a.Key]; was != nil {
		a.StartsAt = was.StartsAt
	}
	if a.StartsAt.IsZero() || a.StartsAt.After(now) {
		a.StartsAt = now
	}
	n := k.put(now, a)
	n.resolved, n.awaited = now, true
}

// put takes an alert in the place of the one of its key that was.
func (k *keeper) put(now time.Time, a alert) *heldAlert {
	k.changes++
	n := &heldAlert{alert: a, at: make([]place, len(k.targets)), change: k.changes}
	for i := range n.at {
		n.at[i].due = now
	}
	k.alerts[a.Key] = n
	return n
}

// delivery is how far an alert has come, as it is now.
type delivery struct {
	Done int  // Alertmanagers that have it
	Left bool // one may have it
	// Why of those that have failed last, empty of the others.
	Why []string
}

// State of an alert; the zero delivery of one that is not kept.
func (k *keeper) State(key alertKey) delivery {
	a := k.alerts[key]
	if a == nil {
		return delivery{}
	}
	s := delivery{Why: make([]string, len(k.targets))}
	for i, p := range a.at {
		if p.done {
			s.Done++
		} else {
			s.Why[i] = k.targets[i].why
		}
		s.Left = s.Left || p.left || p.flying
	}
	return s
}

// Release says that nobody waits any more. keep says whether it is sent on.
func (k *keeper) Release(key alertKey, keep bool) {
	a := k.alerts[key]
	switch {
	case a == nil:
	case keep && !a.resolved.IsZero() && len(k.firing(a.Labels)) > 0:
		delete(k.alerts, key)
	case keep:
		a.awaited = false
	default:
		delete(k.alerts, key)
	}
}

// Stand says all that stands by what is committed. What is not among it is not sent again, but for what somebody waits for, what
// was fired a moment ago, and ends. leads is false of who does not lead: then nothing but what is waited for is sent again.
func (k *keeper) Stand(now time.Time, all []alert, leads bool) {
	among := map[alertKey]bool{}
	for _, a := range all {
		among[a.Key] = leads
		if was := k.alerts[a.Key]; was != nil {
			was.stands = true
		} else if leads {
			if a.StartsAt.IsZero() || a.StartsAt.After(now) {
				a.StartsAt = now
			}
			n := k.put(now, a)
			n.stands = true
			k.dropEnds(n)
		}
	}
	for key, a := range k.alerts {
		switch {
		case among[key] || a.awaited:
		case !leads:
			delete(k.alerts, key)
		case !a.resolved.IsZero():
		// Fired, and its commit may be on its way still.
		case !a.stands && now.Sub(a.fired) < k.cfg.Resend:
		default:
			delete(k.alerts, key)
		}
	}
}

// Sent takes what became of a request. left says whether the Alertmanager may have it. It returns the alerts that an Alertmanager has
// now and none had before, sorted.
func (k *keeper) Sent(now time.Time, p post, ok, left bool, why string) []alertKey {
	t := &k.targets[p.Target]
	t.busy, t.why = false, why
	if ok {
		t.failures, t.pause, t.why = 0, time.Time{}, ""
	} else {
		t.pause = now.Add(min(firstPause<<min(t.failures, 10), k.cfg.Resend))
		t.failures++
	}
	var out []alertKey
	for _, s := range p.Alerts {
		a := k.alerts[s.Key]
		if a == nil || a.change != s.change {
			continue
		}
		at := &a.at[p.Target]
		at.flying = false
		if !ok {
			at.left = at.left || left
			continue
		}
		if !slices.ContainsFunc(a.at, func(p place) bool { return p.done }) {
			out = append(out, s.Key)
		}
		at.done, at.left, at.due = true, true, now.Add(k.cfg.Resend)
	}
	slices.Sort(out)
	return out
}

// Next returns the requests to make now, and when to ask again at the latest; zero: there is nothing to wait for.
func (k *keeper) Next(now time.Time) (posts []post, wake time.Time) {
	k.drop(now)
	for i := range k.targets {
		t := &k.targets[i]
		if t.busy {
			continue
		}
		first := k.first(i)
		if first.IsZero() {
			continue
		}
		if at := laterOf(first, t.pause); at.After(now) {
			if wake.IsZero() || at.Before(wake) {
				wake = at
			}
			continue
		}
		t.busy = true
		posts = append(posts, post{i, k.batch(now, i)})
	}
	return posts, wake
}

// drop forgets the ends that all have reached by themselves.
func (k *keeper) drop(now time.Time) {
	for key, a := range k.alerts {
		if !a.resolved.IsZero() && !a.awaited && now.Sub(a.resolved) > k.cfg.Hold {
			delete(k.alerts, key)
		}
	}
}

// first is when something is due at a target; zero: never.
func (k *keeper) first(i int) time.Time {
	var first time.Time
	for _, a := range k.alerts {
		if at := a.at[i]; first.IsZero() || at.due.Before(first) {
			first = at.due
		}
	}
	return first
}

// batch are the alerts that are due at a target, the longest due first, with those that are due soon: they go by the same request.
func (k *keeper) batch(now time.Time, i int) []sending {
	soon := now.Add(k.cfg.Resend / 10)
	var due []*heldAlert
	for _, a := range k.alerts {
		if !a.at[i].due.After(soon) {
			due = append(due, a)
		}
	}
	slices.SortFunc(due, func(a, b *heldAlert) int { return cmp.Or(a.at[i].due.Compare(b.at[i].due), cmp.Compare(a.Key, b.Key)) })
	due = due[:min(len(due), k.cfg.Batch)]
	for _, a := range slices.Clone(due) {
		if !a.resolved.IsZero() {
			for _, f := range k.firing(a.Labels) { // behind the end, or once more
				due = append(slices.DeleteFunc(due, func(d *heldAlert) bool { return d == f }), f)
			}
		}
	}
	out := make([]sending, 0, len(due))
	for _, a := range due {
		s := sending{alert: a.alert, EndsAt: now.Add(k.cfg.Hold), change: a.change}
		if !a.resolved.IsZero() {
			s.EndsAt = a.resolved
		}
		a.at[i].flying = true
		out = append(out, s)
	}
	return out
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
