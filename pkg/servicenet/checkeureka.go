package servicenet

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Bounds of jobs' messages.
const (
	MaxJob           = 63 // bytes of a job's name
	MaxTopic         = 32 // bytes of a topic, and of a barrier's name
	MaxEurekaBody    = 512
	MaxEurekaUrgency = 3 // the highest priority
)

// ValidLabel reports whether s is a DNS label of at most limit bytes: a-z, 0-9 and '-', the first and last no '-'.
func ValidLabel(s string, limit int) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return s != "" && len(s) <= limit
}

func checkLabel(field, s string, limit int) error {
	if !ValidLabel(s, limit) {
		return refuse(RefusedField, "%s: given %q: want 1 to %d of a-z, 0-9 and '-', the first and last no '-'", field,
			s[:min(len(s), 2*MaxJob)], limit)
	}
	return nil
}

func checkEureka(e *lofamov1.JobEureka) error {
	if n := len(e.GetBody()); n > MaxEurekaBody {
		return refuse(RefusedField, "eureka.body: given %d bytes: want at most %d", n, MaxEurekaBody)
	}
	if p := e.GetPriority(); p > MaxEurekaUrgency {
		return refuse(RefusedField, "eureka.priority: given %d: want 0 to %d", p, MaxEurekaUrgency)
	}
	if n := e.GetEpoch(); n == 0 || n > uint64(MaxEpoch) {
		return refuse(RefusedField, "eureka.epoch: given %d: want 1 to %d", n, uint64(MaxEpoch))
	}
	return firstError(
		checkID("eureka.node", e.GetNode()), atLeastOne("eureka.number", e.GetNumber()),
		checkLabel("eureka.job", e.GetJob(), MaxJob), checkLabel("eureka.topic", e.GetTopic(), MaxTopic),
	)
}
