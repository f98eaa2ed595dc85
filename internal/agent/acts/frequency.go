package acts

import (
	"fmt"
	"maps"
	"slices"
)

// The limits of frequencies. What was there before the first of them, and what is there by them, is kept before anything is written; put back is only what
// still is as it was written. Several steps may want a limit at a time: the lowest is in force, and what was there before comes back with the last of them.

// Limit is what steps have made of the highest frequency of one cpufreq policy.
type Limit struct {
	Policy string `json:"policy"` // "policy0"
	Former uint64 `json:"former"` // before the first of them, kHz
	Ours   uint64 `json:"ours"`   // as it was written last, or is about to be
	// Was is what was there before that, until it is known to be written: whoever writes may end between. 0: it is written.
	Was uint64 `json:"was,omitempty"`
	// Read is what could be read after that, where the kernel has made another value of it; 0: nothing else.
	Read   uint64            `json:"read,omitempty"`
	Owners map[string]uint64 `json:"owners"` // what each step wants, by Attempt.Owner
}

// ours says whether a value is what was written, or was there before and may not have been written over yet.
func (f *Limit) ours(khz uint64) bool {
	return khz == f.Ours || f.Read != 0 && khz == f.Read || f.Was != 0 && khz == f.Was
}

// set notes that a value is about to be written over another.
func (f *Limit) set(khz, over uint64) { f.Ours, f.Was, f.Read = khz, over, 0 }

// lowest is what is to be in force: no higher than it was before.
func (f *Limit) lowest() uint64 {
	return min(f.Former, slices.Min(slices.Collect(maps.Values(f.Owners))))
}

// Frequency is one cpufreq policy as it is, in kHz: see Documentation/admin-guide/pm/cpufreq.rst of the kernel.
type Frequency struct {
	Policy   string
	Min, Max uint64 // that the hardware has: cpuinfo_min_freq, cpuinfo_max_freq
	Limit    uint64 // scaling_max_freq
}

// Write is one to be made.
type Write struct {
	Policy string
	KHz    uint64
}

// Limits returns what a step's limit, in percent of what the hardware has, makes of the ledger's limits, and what is to be written once that is kept. A
// policy that somebody else has limited as low already is left to him. With what has been done it returns the same again, and no writes.
func Limits(have []Limit, now []Frequency, owner string, percent int) (limits []Limit, writes []Write) {
	limits = cloneLimits(have)
	for _, f := range now {
		want := max(f.Max/100*uint64(percent), f.Min)
		i := slices.IndexFunc(limits, func(l Limit) bool { return l.Policy == f.Policy })
		if i >= 0 && !limits[i].ours(f.Limit) { // somebody has set another since
			limits = slices.Delete(limits, i, i+1)
			i = -1
		}
		if i < 0 {
			if f.Limit <= want {
				continue
			}
			limits = append(limits, Limit{Policy: f.Policy, Former: f.Limit, Ours: f.Limit, Owners: map[string]uint64{}})
			i = len(limits) - 1
		}
		l := &limits[i]
		l.Owners[owner] = want
		if low := l.lowest(); low != l.Ours || f.Limit == l.Was { // the latter: kept, and not written, for whoever did has ended between
			l.set(low, f.Limit)
			writes = append(writes, Write{f.Policy, low})
		}
	}
	return limits, writes
}

// Unlimit returns what is left of the limits once a step's is put back, what is to be written, and how many policies are left as they are because somebody
// else has set them since. A policy's last limit is to be
// kept until what was there before is written again.
func Unlimit(have []Limit, now []Frequency, owner string) (limits []Limit, writes []Write, others int) {
	for _, l := range cloneLimits(have) {
		if _, mine := l.Owners[owner]; !mine {
			limits = append(limits, l)
			continue
		}
		i := slices.IndexFunc(now, func(f Frequency) bool { return f.Policy == l.Policy })
		if i < 0 || !l.ours(now[i].Limit) {
			others++
			continue
		}
		delete(l.Owners, owner)
		if len(l.Owners) == 0 {
			if l.Former != now[i].Limit {
				writes = append(writes, Write{l.Policy, l.Former})
			}
			continue
		}
		if low := l.lowest(); low != l.Ours || now[i].Limit == l.Was {
			l.set(low, now[i].Limit)
			writes = append(writes, Write{l.Policy, low})
		}
		limits = append(limits, l)
	}
	return limits, writes, others
}

func cloneLimits(have []Limit) []Limit {
	out := slices.Clone(have)
	for i := range out {
		out[i].Owners = maps.Clone(out[i].Owners)
	}
	return out
}

// Written notes what could be read of a policy after it was written.
func (l *Ledger) Written(policy string, khz uint64) {
	for i := range l.Limits {
		f := &l.Limits[i]
		if f.Policy != policy {
			continue
		}
		f.Was = 0
		if khz != f.Ours {
			f.Read = khz
		}
	}
}

func (f Frequency) String() string {
	return fmt.Sprintf("%s at %d of %d kHz", f.Policy, f.Limit, f.Max)
}

// Until returns what is kept while the writes of Unlimit are made: what is left, and of what is put back that there is something to put back.
func Until(have, left []Limit, writes []Write) []Limit {
	out := cloneLimits(left)
	for _, l := range have {
		has := func(f Limit) bool { return f.Policy == l.Policy }
		if !slices.ContainsFunc(left, has) && slices.ContainsFunc(writes, func(w Write) bool { return w.Policy == l.Policy }) {
			out = append(out, l)
		}
	}
	return out
}
