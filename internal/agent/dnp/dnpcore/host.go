package dnpcore

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// onHost lets the reader judge a taken word, and applies the word's content.
func (m *Machine) onHost(now time.Time, ev Host) {
	if ev.Unreadable {
		m.raise(now, watchdog.AddrEngine, watchdog.EngineRegisterFile)
		if !m.unreadable {
			m.note(NoteUnreadable, "the register page cannot be read")
		}
	}
	m.unreadable = ev.Unreadable
	m.unreads++
	if !ev.Unreadable {
		m.unreads = 0
	}
	m.judgeRegisters()
	m.window = ev.Window
	if ev.Taken {
		m.judge(now, ev.Sample)
		m.observeBus(now)
		m.reviewStale(now)
	}
	if m.verdict == watchdog.Stale || ev.Unreadable || ev.Sample.Corrupt {
		return
	}
	w := ev.Word
	w.Valid = true // as its owner wrote it
	if w != m.host {
		m.host = w
		m.beatAll()
	}
}

// fatalUnreads is the number of consecutive failures to read the registers that make the core broken.
const fatalUnreads = 3

// judgeRegisters decides whether this half can use its own registers.
func (m *Machine) judgeRegisters() {
	fatal := m.unreads >= fatalUnreads || m.selfTest.registers
	if was := m.exceptions.at(watchdog.AddrEngine).levels&watchdog.EngineFatal != 0; was == fatal {
		return
	}
	m.exceptions.level(watchdog.AddrEngine, watchdog.EngineFatal, fatal)
}

// judge passes a read sample to the watchdog reader (seed 001 §III-E).
func (m *Machine) judge(now time.Time, s watchdog.Sample) {
	if s.Corrupt {
		m.raise(now, watchdog.AddrEngine, watchdog.EngineRegisterBad)
		if !m.corrupt {
			m.note(NoteCorrupt, "the host watchdog word was torn or flipped: register invalid")
		}
	}
	m.corrupt = s.Corrupt
	out := m.reader.Step(now, func() watchdog.Sample { return s })
	m.readerWake = out.Wake
	if out.Verdict == m.verdict {
		return
	}
	switch out.Verdict {
	case watchdog.Alive:
		m.becomeAlive(now)
	case watchdog.Stale:
		m.becomeStale(now, out.Age)
	default: // no transition leads back to Waiting
	}
}

// onEnded draws the conclusion from the end of the host half's process, without waiting for missed reads. The watchdog
// remains the judge of a half that hangs.
func (m *Machine) onEnded(now time.Time, ev Ended) {
	if m.verdict == watchdog.Stale {
		return
	}
	out := m.reader.Ended(now)
	m.ended = "its process " + ev.How
	m.note(NoteHost, "the host half is dead: %s", m.ended)
	m.becomeStale(now, min(max(0, ev.Age), out.Age))
}

// observeBus states the bus to the host half's kernel, in the report that accuses that half.
func (m *Machine) observeBus(now time.Time) {
	if o, known := m.window.Bus(m.self, m.verdict); known {
		m.ledger.Set(now, o)
	}
}

// reviewStale follows what the window says about a host half that is stale: its kernel may answer only after the verdict, or
// fall silent.
func (m *Machine) reviewStale(now time.Time) {
	if m.verdict != watchdog.Stale || m.window.State == 0 {
		return
	}
	m.stateStale(now, 0)
	if s := m.hostStatus(); s != m.told {
		m.beatAll()
	}
}

// hostStatus returns what the neighbours learn about the host half. Over a silent window this half cannot tell a dead kernel from a
// cut bus, and over a claimed one it knows nothing. After its own start it has not seen the host half yet. In these cases the word is
// not valid, and the host is not called dead. The neighbours take the supervisors' verdict.
func (m *Machine) hostStatus() torus.Status {
	w, dead := m.host, m.verdict == watchdog.Stale
	if dead && m.ended == "" && (m.window.State == watchdog.WindowSilent || m.window.Claimed()) {
		w.Valid, dead = false, false
	}
	if m.verdict == watchdog.Waiting {
		w.Valid = false
	}
	return torus.Status{Host: w.Encode(), HostDead: dead}
}

// stateStale states that the host half is dead.
func (m *Machine) stateStale(now time.Time, age time.Duration) {
	halfcore.DeadHalf{Node: m.self, Component: fault.ComponentHost, Health: m.health.As(now).Host, Ended: m.ended, Age: age,
		Words: m.wordsSerial, Otherwise: "watchdog word not valid"}.State(now, m.ledger, m.window)
}

// becomeStale handles the total host breakdown (Table II): it informs the neighbours by a frame at once, and the
// supervisors by a report through them.
func (m *Machine) becomeStale(now time.Time, age time.Duration) {
	m.verdict = watchdog.Stale
	if m.ended == "" {
		m.note(NoteHost, "the host half does not validate its word: last valid %s ago", age.Round(time.Millisecond))
	}
	// The host half reported earlier changes while it lived. It may have died up to one read period before the read that last saw it.
	m.ledger.Forget(now, now.Add(-age-m.cfg.Periods.TRead))
	m.stateStale(now, age)
	m.test(now, selftest.Excused{Module: selftest.Module{Kind: selftest.Mailbox}})
	m.speaking, m.digestAt, m.aliveAt, m.withdrawAt = true, now.Add(m.cfg.Periods.DigestPeriod), time.Time{}, time.Time{}
	m.beatAll()
}

// onHealth records the health of a half. Last words of the host's kernel that come after its death are reported, too.
func (m *Machine) onHealth(now time.Time, ev Health) {
	m.health.Set(now, ev.Half, ev.Health)
	words := ev.Half == fault.HalfDNP && len(ev.Health.GetLastWords()) > 0
	if words {
		m.wordsSerial = ev.Health.GetLastWords()[0].GetSerial()
	}
	if (ev.Half == fault.HalfHost || words) && m.verdict == watchdog.Stale {
		m.stateStale(now, 0)
	}
}

// becomeAlive ends the host's breakdown: the host half speaks again. That half needs a moment until its first digest;
// only then this half withdraws its statements in the host's place (withdrawDigest). A statement of this half would lift the
// supervisors' verdict. The host half must speak first, because it may have to report a restart or a sickness; this
// half speaks only for a host that is silent.
func (m *Machine) becomeAlive(now time.Time) {
	was := m.verdict
	m.verdict, m.ended = watchdog.Alive, ""
	m.note(NoteHost, "the host half is alive")
	m.state(now, fault.ComponentHost, fault.Normal, fault.KindWatchdog, "")
	m.beatAll()
	if was != watchdog.Stale {
		return
	}
	m.speaking = false
	m.ledger.Changes(now)
	m.aliveAt = now.Add(m.cfg.Periods.DigestPeriod)
	m.withdrawAt = m.aliveAt.Add(m.cfg.Periods.DigestPeriod)
}

// withdrawDigest sends the last digest: this half withdraws every statement that the digest omits.
func (m *Machine) withdrawDigest(now time.Time) {
	m.withdrawAt = time.Time{}
	own := fault.Observation{Node: m.self, Component: fault.ComponentDNP, State: fault.Normal, Kind: fault.KindSelf}
	m.add(now, fault.Report{Digest: true, Observations: append(m.alive(), own)})
}

// alive returns this half's statements that the host half is back, and the bus to its kernel.
func (m *Machine) alive() []fault.Observation {
	out := []fault.Observation{{Node: m.self, Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindWatchdog}}
	if o, known := m.window.Bus(m.self, m.verdict); known {
		out = append(out, o)
	}
	return out
}

// hostCarries reports whether this node's host half can pass messages to the supervisors.
func (m *Machine) hostCarries() bool {
	return m.verdict == watchdog.Alive && m.host.ServiceNetwork != watchdog.HealthBroken
}

// report sends the changes of this step, or the digest when due, while this half speaks.
func (m *Machine) report(now time.Time) {
	if !m.speaking {
		if !m.aliveAt.IsZero() && !now.Before(m.aliveAt) {
			m.aliveAt = time.Time{}
			m.add(now, fault.Report{Observations: m.alive()})
		}
		if !m.withdrawAt.IsZero() && !now.Before(m.withdrawAt) {
			m.withdrawDigest(now)
		}
		return
	}
	if changes := m.ledger.Changes(now); changes != nil {
		m.addChanges(now, changes)
		if halfcore.NeedDigest(changes, m.cfg.Periods) {
			m.digestAt = fault.Earlier(m.digestAt, now)
		}
	}
	if now.Before(m.digestAt) || m.inhibited() { // nothing waits for withheld digests, so a drain makes no rail look dead
		return
	}
	m.digestAt = now.Add(m.budget.Level().Digests(m.cfg.Periods))
	m.add(now, fault.Report{Digest: true, Observations: m.ledger.Digest(now)})
}

func (m *Machine) add(now time.Time, r fault.Report) { m.sender.Add(now, m.headed(now, r)) }

// headed returns r with the watchdog words, the fault descriptor, the uptime and, if it is needed, the platform.
func (m *Machine) headed(now time.Time, r fault.Report) fault.Report {
	w := m.word
	w.Valid = true
	h := m.host
	h.Valid = m.verdict == watchdog.Alive
	r.Uptime = now.Sub(m.start)
	// constant during one incarnation, and later digests by the torus need every byte
	if !r.Digest || r.Uptime < 4*m.cfg.Periods.DigestPeriod {
		r.Platform = m.platform()
	}
	r.Registers = fault.Registers{
		DNPWatchdog: w.Encode(), HostWatchdog: h.Encode(), RemoteFaultDescriptor: m.descriptor.Encode(),
	}
	return r
}

// platform returns the platform of the two halves: halves without a window map one register file.
func (m *Machine) platform() fault.Platform {
	if !m.cfg.Window {
		return fault.PlatformSharedKernel
	}
	return m.window.Platform
}

// deliver carries out the outbox's output of this step.
func (m *Machine) deliver(now time.Time) {
	o := m.sender.Take()
	m.out.SenderEffects = o.SenderEffects
	for _, s := range o.Send {
		if death, others, ok := m.deathApart(now, s); ok {
			m.seal(now, death)
			s = others
		}
		m.seal(now, s)
	}
}

func (m *Machine) seal(now time.Time, s servicenet.Send) {
	m.out.Seal = append(m.out.Seal, Seal{Reports: s.Reports, Status: s.Status, Attempt: s.Attempt, Health: m.healthFor(now, s)})
}

// healthFor returns the health that goes with a datagram.
func (m *Machine) healthFor(now time.Time, s servicenet.Send) servicenet.Health {
	switch {
	case slices.ContainsFunc(s.Reports, func(r fault.Report) bool { return r.Digest }):
		return servicenet.FitHealth(&s, s.Status, m.health.As(now))
	case m.verdict == watchdog.Stale:
		return servicenet.FitLastWords(&s, m.health.As(now).DNP.GetLastWords())
	}
	return servicenet.Health{}
}

// answer answers a challenge, signed with this half's own key.
func (m *Machine) answer(c *lofamov1.Challenge) {
	m.out.Seal = append(m.out.Seal, Seal{Attempt: 1, Answer: &lofamov1.Answer{
		Nonce: c.GetNonce(), Node: string(m.self), Half: lofamov1.Half_HALF_DNP, Epoch: uint64(m.Epoch()),
	}})
}
