package servicenet

import (
	"fmt"
	"math"
	"math/bits"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Health describes the recoveries and self-tests of a node's halves, and goes with digests; nil: no statement about
// that half.
type Health struct {
	Host, DNP *lofamov1.HalfHealth
}

// Of returns the health of a half.
func (h Health) Of(half fault.Half) *lofamov1.HalfHealth {
	if half == fault.HalfHost {
		return h.Host
	}
	return h.DNP
}

func (h Health) empty() bool { return h.Host == nil && h.DNP == nil }

// healthOf returns the health that came with reports.
func healthOf(m *lofamov1.Reports) Health { return Health{m.GetHost(), m.GetDnp()} }

// MaxSelfTests bounds the modules in the health of one half.
const MaxSelfTests = 32

// FitHealth returns as much of h as there is room for beside the reports of s and a status. The messages of h are not
// changed. By the torus there is room for a few numbers at best.
func FitHealth(s *Send, status *lofamov1.DeliveryStatus, h Health) Health {
	room := s.Room - statusSize(status)
	if s.Path == fault.PathDirect && status != nil && status.GetDenied() == 0 {
		room -= deniedSize
	}
	for i := range s.Reports {
		room -= reportSize(s.Reports[i])
	}
	for cut := range nothing {
		out := Health{cutHealth(h.Host, cut), cutHealth(h.DNP, cut)}
		if healthSize(out) <= room {
			return out
		}
	}
	return Health{}
}

// FitLastWords returns as much of a DNP half's last words as fits beside reports of its host half's death, or an empty Health. A digest
// over the torus, which carries all states, often has no room for them.
func FitLastWords(s *Send, words []*lofamov1.LastWords) Health {
	if len(words) == 0 {
		return Health{}
	}
	if h := FitHealth(s, s.Status, Health{DNP: &lofamov1.HalfHealth{LastWords: words}}); len(h.DNP.GetLastWords()) > 0 {
		return h
	}
	return Health{}
}

// cutting is the extent to which a half's health is cut; each step omits more than the previous one.
type cutting int

const (
	whole      cutting = iota
	bare               // of the tests module and state
	unwell             // of these only modules that are neither passed nor idle
	noTests            // none
	noTexts            // of the recoveries the numbers
	noDetails          // nor the kernel's line about the end of the last boot
	onlyCauses         // state and restarts, and why of a half that does not run
	justCounts         // state and restarts
	nothing
)

func cutHealth(h *lofamov1.HalfHealth, cut cutting) *lofamov1.HalfHealth {
	if h == nil || cut == whole {
		return h
	}
	out := &lofamov1.HalfHealth{Recovery: h.GetRecovery(), Cut: h.GetCut() || len(h.GetTests()) > 0, AgeNs: h.GetAgeNs(),
		Processor: h.GetProcessor(), LastBoot: cutBoot(h.GetLastBoot(), cut), HardwareWatchdog: h.GetHardwareWatchdog(),
		LastWords: cutWords(h.GetLastWords(), cut)}
	for _, t := range h.GetTests() {
		well := t.GetState() == lofamov1.TestState_PASSED || t.GetState() == lofamov1.TestState_IDLE
		if cut == bare || cut == unwell && !well {
			out.Tests = append(out.Tests, &lofamov1.SelfTest{Number: t.GetNumber(), State: t.GetState()})
		}
	}
	r := h.GetRecovery()
	switch {
	case r == nil:
	case cut == noTexts || cut == noDetails:
		out.Recovery = &lofamov1.RecoveryStatus{
			State: r.GetState(), Restarts: r.GetRestarts(), InWindow: r.GetInWindow(), Budget: r.GetBudget(), WindowMs: r.GetWindowMs(),
			AgeNs:  r.GetAgeNs(),
			GoneUs: r.GetGoneUs(), StartedUs: r.GetStartedUs(), ServingUs: r.GetServingUs(), ProvenUs: r.GetProvenUs(),
			Resumption: r.GetResumption(), UntilMs: r.GetUntilMs(),
		}
		out.Cut = true
	case cut >= onlyCauses:
		out.Recovery, out.Cut, out.AgeNs = &lofamov1.RecoveryStatus{State: r.GetState(), Restarts: r.GetRestarts()}, true, 0
		if p := h.GetProcessor(); cut == justCounts {
			out.Processor = nil
			if p.GetStarved() || p.GetBudgetLevel() > 0 {
				out.Processor = &lofamov1.ProcessorTime{Starved: p.GetStarved(), LongestMs: p.GetLongestMs(), BudgetLevel: p.GetBudgetLevel()}
			}
		}
		if cut == onlyCauses && r.GetState() != lofamov1.RecoveryState_RUNNING {
			out.Recovery.Cause = r.GetCause()
		}
	}
	return out
}

// healthSize returns how many bytes h adds to an encoded Reports message.
func healthSize(h Health) int {
	n := 0
	for _, half := range [...]*lofamov1.HalfHealth{h.Host, h.DNP} {
		if half != nil {
			var room [512]byte // enough for most
			n += 1 + protowire.SizeBytes(len(appendHalf(room[:0], half)))
		}
	}
	return n
}

func appendHealth(b []byte, h Health) []byte {
	for i, half := range [...]*lofamov1.HalfHealth{h.Host, h.DNP} {
		if half != nil {
			var at int
			b, at = beginField(b, protowire.Number(3+i))
			b = endField(appendHalf(b, half), at)
		}
	}
	return b
}

func appendHalf(b []byte, h *lofamov1.HalfHealth) []byte {
	var at int
	if h.GetRecovery() != nil {
		b, at = beginField(b, 1)
		b = endField(appendRecovery(b, h.GetRecovery()), at)
	}
	for _, t := range h.GetTests() {
		b, at = beginField(b, 2)
		b = endField(appendTest(b, t), at)
	}
	b = appendFlag(b, 3, h.GetCut())
	b = appendUint(b, 4, h.GetAgeNs())
	b = appendFlag(b, 5, h.GetOld())
	if h.GetProcessor() != nil {
		b, at = beginField(b, 6)
		b = endField(appendProcessor(b, h.GetProcessor()), at)
	}
	if boot := h.GetLastBoot(); boot != nil {
		b, at = beginField(b, 7)
		b = appendUint(b, 1, uint64(boot.GetEnd()))
		b = appendText(b, 2, boot.GetDetail())
		b = endField(appendWord(b, 3, boot.GetBoot()), at)
	}
	for _, w := range h.GetLastWords() {
		b, at = beginField(b, 8)
		b = endField(appendWords(b, w), at)
	}
	if w := h.GetHardwareWatchdog(); w != nil {
		b, at = beginField(b, 9)
		b = appendFlag(b, 1, w.GetArmed())
		b = appendUint(b, 2, uint64(w.GetTimeoutMs()))
		b = appendUint(b, 3, uint64(w.GetContactWithinMs()))
		b = endField(appendWord(b, 4, w.GetBoot()), at)
	}
	return b
}

func appendProcessor(b []byte, p *lofamov1.ProcessorTime) []byte {
	b = appendFlag(b, 1, p.GetStarved())
	b = appendUint(b, 2, uint64(p.GetLongestMs()))
	b = appendUint(b, 3, uint64(p.GetSharePermille()))
	b = appendUint(b, 4, uint64(p.GetBudgetLevel()))
	b = appendUint(b, 5, uint64(p.GetUsedPermille()))
	return appendFlag(b, 6, p.GetNotRealtime())
}

func appendRecovery(b []byte, r *lofamov1.RecoveryStatus) []byte {
	b = appendUint(b, 1, uint64(r.GetState()))
	b = appendUint(b, 2, uint64(r.GetRestarts()))
	b = appendUint(b, 3, uint64(r.GetInWindow()))
	b = appendUint(b, 4, uint64(r.GetBudget()))
	b = appendUint(b, 5, uint64(r.GetWindowMs()))
	b = appendText(b, 6, r.GetCause())
	b = appendUint(b, 7, r.GetAgeNs())
	b = appendUint(b, 8, uint64(r.GetGoneUs()))
	b = appendUint(b, 9, uint64(r.GetStartedUs()))
	b = appendUint(b, 10, uint64(r.GetServingUs()))
	b = appendUint(b, 11, uint64(r.GetProvenUs()))
	b = appendUint(b, 12, uint64(r.GetResumption()))
	b = appendText(b, 13, r.GetCold())
	b = appendUint(b, 14, uint64(r.GetUntilMs()))
	return appendText(b, 15, r.GetReason())
}

func appendTest(b []byte, t *lofamov1.SelfTest) []byte {
	b = appendUint(b, 1, uint64(t.GetNumber()))
	b = appendUint(b, 2, uint64(t.GetState()))
	b = appendUint(b, 3, uint64(t.GetAgeMs()))
	b = appendUint(b, 4, uint64(t.GetLatencyUs()))
	b = appendUint(b, 5, uint64(t.GetLearnedUs()))
	b = appendUint(b, 6, t.GetTests())
	b = appendUint(b, 7, t.GetLost())
	b = appendUint(b, 8, t.GetAltered())
	b = appendUint(b, 9, t.GetDoubled())
	b = appendUint(b, 10, t.GetLate())
	b = appendText(b, 11, t.GetModule())
	b = appendText(b, 12, t.GetWhy())
	return appendFlag(b, 13, t.GetProving())
}

// readHealth reads the health of the halves; false: it is not canonical.
func (c *canonical) readHealth(h *Health) bool {
	for i, half := range [...]**lofamov1.HalfHealth{&h.Host, &h.DNP} {
		if !c.next(protowire.Number(3 + i)) {
			continue
		}
		m := c.message(protowire.Number(3 + i))
		m.text = string(m.b)
		if *half = m.readHalf(); *half == nil || checkHalfHealth(healthFields[i], *half) != nil {
			return false
		}
	}
	return true
}

func (c *canonical) readHalf() *lofamov1.HalfHealth {
	h := &lofamov1.HalfHealth{}
	if c.next(1) {
		r := c.message(1)
		h.Recovery = r.readRecovery()
		if !r.done() {
			return nil
		}
	}
	if c.next(2) {
		n := c.count(2)
		if n > MaxSelfTests {
			return nil
		}
		all := make([]lofamov1.SelfTest, n)
		h.Tests = make([]*lofamov1.SelfTest, n)
		for i := range all {
			m := c.message(2)
			m.readTest(&all[i])
			if h.Tests[i] = &all[i]; !m.done() {
				return nil
			}
		}
	}
	h.Cut, h.AgeNs, h.Old = c.flag(3), uint64(c.age(4)), c.flag(5)
	if c.next(6) {
		p := c.message(6)
		h.Processor = &lofamov1.ProcessorTime{
			Starved: p.flag(1), LongestMs: uint32(p.uint(2, math.MaxUint32)), SharePermille: uint32(p.uint(3, math.MaxUint32)),
			BudgetLevel: uint32(p.uint(4, math.MaxUint32)), UsedPermille: uint32(p.uint(5, math.MaxUint32)),
			NotRealtime: p.flag(6),
		}
		if !p.done() {
			return nil
		}
	}
	if c.next(7) {
		b := c.message(7)
		h.LastBoot = &lofamov1.LastBoot{
			End: lofamov1.BootEnd(b.uint(1, uint64(lofamov1.BootEnd_BOOT_UNKNOWN))), Detail: b.string(2), Boot: b.word(3),
		}
		if !b.done() {
			return nil
		}
	}
	for c.next(8) {
		m := c.message(8)
		w := m.readWords()
		if !m.done() || len(h.LastWords) == MaxLastWords {
			return nil
		}
		h.LastWords = append(h.LastWords, w)
	}
	if c.next(9) {
		w := c.message(9)
		h.HardwareWatchdog = &lofamov1.HardwareWatchdog{
			Armed: w.flag(1), TimeoutMs: uint32(w.uint(2, math.MaxUint32)), ContactWithinMs: uint32(w.uint(3, math.MaxUint32)), Boot: w.word(4),
		}
		if !w.done() {
			return nil
		}
	}
	if !c.done() {
		return nil
	}
	return h
}

func (c *canonical) readRecovery() *lofamov1.RecoveryStatus {
	return &lofamov1.RecoveryStatus{
		State:    lofamov1.RecoveryState(c.uint(1, uint64(lofamov1.RecoveryState_GIVEN_UP))),
		Restarts: uint32(c.uint(2, math.MaxUint32)), InWindow: uint32(c.uint(3, math.MaxUint32)),
		Budget: uint32(c.uint(4, math.MaxUint32)), WindowMs: uint32(c.uint(5, math.MaxUint32)), Cause: c.string(6), AgeNs: uint64(c.age(7)),
		GoneUs: uint32(c.uint(8, math.MaxUint32)), StartedUs: uint32(c.uint(9, math.MaxUint32)),
		ServingUs: uint32(c.uint(10, math.MaxUint32)), ProvenUs: uint32(c.uint(11, math.MaxUint32)),
		Resumption: lofamov1.Resumption(c.uint(12, uint64(lofamov1.Resumption_COLD))), Cold: c.string(13),
		UntilMs: uint32(c.uint(14, math.MaxUint32)), Reason: c.string(15),
	}
}

func (c *canonical) readTest(t *lofamov1.SelfTest) {
	t.Number, t.State = uint32(c.uint(1, math.MaxUint32)), lofamov1.TestState(c.uint(2, uint64(lofamov1.TestState_IDLE)))
	t.AgeMs, t.LatencyUs, t.LearnedUs = uint32(c.uint(3, math.MaxUint32)), uint32(c.uint(4, math.MaxUint32)), uint32(c.uint(5, math.MaxUint32))
	t.Tests, t.Lost, t.Altered = c.uint(6, math.MaxUint64), c.uint(7, math.MaxUint64), c.uint(8, math.MaxUint64)
	t.Doubled, t.Late, t.Module = c.uint(9, math.MaxUint64), c.uint(10, math.MaxUint64), c.string(11)
	t.Why, t.Proving = c.string(12), c.flag(13)
}

var healthFields = [...]string{"host", "dnp"}

func checkHealth(h Health) error {
	return firstError(checkHalfHealth(healthFields[0], h.Host), checkHalfHealth(healthFields[1], h.DNP))
}

// checkHalfHealth bounds the health of a half, which may be nil. No field is required: states that are 0 are omitted.
func checkHalfHealth(field string, h *lofamov1.HalfHealth) error {
	r, boot := h.GetRecovery(), h.GetLastBoot()
	switch s, how := r.GetState(), r.GetResumption(); {
	case s < 0 || s > lofamov1.RecoveryState_GIVEN_UP:
		return refuse(RefusedField, "%s.recovery.state: given %d: want 0 to %d", field, s, lofamov1.RecoveryState_GIVEN_UP)
	case how < 0 || how > lofamov1.Resumption_COLD:
		return refuse(RefusedField, "%s.recovery.resumption: given %d: want 0 to %d", field, how, lofamov1.Resumption_COLD)
	}
	if end := boot.GetEnd(); end < 0 || end > lofamov1.BootEnd_BOOT_UNKNOWN {
		return refuse(RefusedField, "%s.last_boot.end: given %d: want 0 to %d", field, end, lofamov1.BootEnd_BOOT_UNKNOWN)
	}
	if err := checkWatchdog(field, h.GetHardwareWatchdog()); err != nil {
		return err
	}
	if n := len(h.GetTests()); n > MaxSelfTests {
		return refuse(RefusedField, "%s.tests: given %d: want at most %d", field, n, MaxSelfTests)
	}
	if err := checkLastWords(field, h.GetLastWords()); err != nil {
		return err
	}
	for i, t := range h.GetTests() {
		switch s := t.GetState(); {
		case t.GetNumber() == 0:
			return refuse(RefusedField, "%s.tests[%d].number: given 0: want at least 1", field, i)
		case s < 0 || s > lofamov1.TestState_IDLE:
			return refuse(RefusedField, "%s.tests[%d].state: given %d: want 0 to %d", field, i, s, lofamov1.TestState_IDLE)
		}
		if !validText(t.GetModule()) {
			return checkText(field+".tests.module", t.GetModule())
		}
		if !validText(t.GetWhy()) {
			return checkText(field+".tests.why", t.GetWhy())
		}
	}
	if h.GetAgeNs() <= uint64(MaxAge) && r.GetAgeNs() <= uint64(MaxAge) && validText(r.GetCause()) && validText(r.GetCold()) &&
		validText(r.GetReason()) && validText(boot.GetDetail()) {
		return nil // without making the names of fields
	}
	return firstError(
		checkDuration(field+".age_ns", h.GetAgeNs()),
		checkText(field+".recovery.cause", r.GetCause()),
		checkText(field+".recovery.cold", r.GetCold()),
		checkText(field+".recovery.reason", r.GetReason()),
		checkText(field+".last_boot.detail", boot.GetDetail()),
		checkDuration(field+".recovery.age_ns", r.GetAgeNs()),
	)
}

// CheckHalfHealth refuses health that no digest may carry.
func CheckHalfHealth(h *lofamov1.HalfHealth) error { return checkHalfHealth("health", h) }

// leaveOutLaterHealth removes states that have a number beyond those known here.
func leaveOutLaterHealth(h *lofamov1.HalfHealth) {
	if b := h.GetLastBoot(); b.GetEnd() > lofamov1.BootEnd_BOOT_UNKNOWN {
		b.End = lofamov1.BootEnd_BOOT_END_UNSPECIFIED
	}
	for _, w := range h.GetLastWords() {
		if w.GetEnd() > lofamov1.BootEnd_BOOT_UNKNOWN {
			w.End = lofamov1.BootEnd_BOOT_END_UNSPECIFIED
		}
	}
	if r := h.GetRecovery(); r != nil {
		if r.GetState() > lofamov1.RecoveryState_GIVEN_UP {
			r.State = lofamov1.RecoveryState_RECOVERY_STATE_UNSPECIFIED
		}
		if r.GetResumption() > lofamov1.Resumption_COLD {
			r.Resumption = lofamov1.Resumption_RESUMPTION_UNSPECIFIED
		}
	}
	for _, t := range h.GetTests() {
		if t.GetState() > lofamov1.TestState_IDLE {
			t.State = lofamov1.TestState_TEST_STATE_UNSPECIFIED
		}
	}
}

// Words returns a number for the part of h that matters at once, so that digests with the same number go on as
// deltas. Values that change in every digest (ages, latencies, counts of tests) do not affect the number, and counts
// of faults only when they double. It returns 0 if h is empty.
func (h Health) Words() uint64 {
	if h.empty() {
		return 0
	}
	sum := uint64(14695981039346656037)
	mix := func(vs ...uint64) {
		for _, v := range vs {
			sum = (sum ^ v) * 1099511628211 // FNV-1a, by words
		}
	}
	text := func(t string) {
		mix(uint64(len(t)))
		for i := range len(t) {
			mix(uint64(t[i]))
		}
	}
	bit := func(is bool) uint64 {
		if is {
			return 1
		}
		return 0
	}
	for _, half := range [...]*lofamov1.HalfHealth{h.Host, h.DNP} {
		if half == nil {
			mix(0)
			continue
		}
		r := half.GetRecovery()
		mix(1, uint64(r.GetState()), uint64(r.GetRestarts()), uint64(r.GetBudget()), uint64(r.GetWindowMs()),
			uint64(r.GetGoneUs()), uint64(r.GetStartedUs()), uint64(r.GetServingUs()), uint64(r.GetProvenUs()), uint64(r.GetResumption()))
		text(r.GetCause())
		text(r.GetCold())
		text(r.GetReason())
		if b := half.GetLastBoot(); b != nil {
			mix(uint64(b.GetEnd()), uint64(b.GetBoot()))
			text(b.GetDetail())
		}
		if w := half.GetHardwareWatchdog(); w != nil {
			mix(9, bit(w.GetArmed()), uint64(w.GetTimeoutMs()), uint64(w.GetContactWithinMs()), uint64(w.GetBoot()))
		}
		for _, w := range half.GetLastWords() {
			mix(uint64(w.GetSerial()))
			text(w.GetNode())
		}
		mix(bit(half.GetCut()), uint64(len(half.GetTests())))
		if p := half.GetProcessor(); p != nil {
			mix(bit(p.GetStarved()), uint64(bits.Len32(p.GetLongestMs())), uint64(bits.Len32(p.GetSharePermille())), uint64(p.GetBudgetLevel()),
				bit(p.GetNotRealtime()))
		}
		for _, t := range half.GetTests() {
			mix(uint64(t.GetNumber()), uint64(t.GetState()), bit(t.GetProving()))
			for _, n := range [...]uint64{t.GetLost(), t.GetAltered(), t.GetDoubled(), t.GetLate()} {
				mix(uint64(bits.Len64(n)))
			}
		}
	}
	return max(1, sum)
}

// BudgetWords describes for people the work that a half gives up to keep to its budget of processor time; empty: none.
func BudgetWords(p *lofamov1.ProcessorTime) string {
	work := "digests, probes and sensor readings"
	switch p.GetBudgetLevel() {
	case 0:
		return ""
	case 1:
		work = "digests"
	case 2:
		work = "digests and probes"
	}
	used := ""
	if u := p.GetUsedPermille(); u > 0 {
		used = fmt.Sprintf(": it uses %.1f %% of a core", float64(u)/10)
	}
	return fmt.Sprintf("is over its processor budget and sends or makes fewer %s (level %d)%s", work, p.GetBudgetLevel(), used)
}

// RealtimeWords describes for people that a half lacks real-time scheduling, with the remedies; empty: it does not.
func RealtimeWords(p *lofamov1.ProcessorTime) string {
	if !p.GetNotRealtime() {
		return ""
	}
	return "runs without real-time scheduling, so a loaded machine may delay it: set LimitRTPRIO=1 in its unit, agents.realtime in values " +
		"of Helm, or grant CAP_SYS_NICE, or use preset relaxed on all nodes and supervisors"
}

// modules are the names of self-tested modules by their number, except for links and the direct rail.
var modules = map[uint32]string{7: "relay", 8: "gossip", 9: "report-path", 10: "mailbox", 11: "register-path", 12: "bulk"}

// directNumber is the number of the direct rail by service interface 0.
const directNumber = 16

// ModuleName returns the name of a module for people: for the direct rail the name of its interface, if the node has
// reported it.
func ModuleName(number uint32, d *lofamov1.DeliveryStatus) string {
	if dirs := grid.Directions(); number >= 1 && int(number) <= len(dirs) {
		return fault.Link(dirs[number-1]).String()
	}
	if name, ok := modules[number]; ok {
		return name
	}
	if number < directNumber || number >= directNumber+MaxInterfaces {
		return fmt.Sprintf("module/%d", number)
	}
	k := int(number - directNumber)
	if rails := d.GetRails(); k < len(rails) && strings.HasPrefix(rails[k].GetName(), "direct/") {
		return rails[k].GetName()
	}
	return fmt.Sprintf("direct/%d", k)
}
