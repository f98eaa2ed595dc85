package servicenet

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Bounds of a TorusConfiguration.
const (
	MaxConfigurationParts  = 64
	MaxConfigurationAbsent = 1024 // places in all parts
	MaxConfigurationMasks  = 2048 // nodes in all parts
	maxPartAbsent          = 200
	maxPartMasks           = 100
	maxDims                = 32 // bytes
	minDelay, maxDelay     = 100, 10_000_000
)

func checkTorusConfiguration(c *lofamov1.TorusConfiguration) error {
	if n := len(c.GetDims()); n < 1 || n > maxDims {
		return refuse(RefusedField, "torus_configuration.dims: given %d bytes: want 1 to %d", n, maxDims)
	}
	if d := c.GetDelayUs(); d < minDelay || d > maxDelay {
		return refuse(RefusedField, "torus_configuration.delay_us: given %d: want %d to %d", d, minDelay, maxDelay)
	}
	if n := c.GetParts(); n < 1 || n > MaxConfigurationParts || c.GetPart() >= n {
		return refuse(RefusedField, "torus_configuration.part: given %d of %d: want 0 to n-1 of 1 to %d", c.GetPart(), n, MaxConfigurationParts)
	}
	if n := len(c.GetAbsent()); n > maxPartAbsent {
		return refuse(RefusedField, "torus_configuration.absent: given %d: want at most %d", n, maxPartAbsent)
	}
	for i, rank := range c.GetAbsent() {
		if i > 0 && rank <= c.GetAbsent()[i-1] {
			return refuse(RefusedField, "torus_configuration.absent: given %d behind %d: want them ascending", rank, c.GetAbsent()[i-1])
		}
	}
	if n := len(c.GetMasks()); n > maxPartMasks {
		return refuse(RefusedField, "torus_configuration.masks: given %d: want at most %d", n, maxPartMasks)
	}
	for i, m := range c.GetMasks() {
		if i > 0 && m.GetRank() <= c.GetMasks()[i-1].GetRank() {
			return refuse(RefusedField, "torus_configuration.masks: given rank %d behind %d: want them ascending", m.GetRank(),
				c.GetMasks()[i-1].GetRank())
		}
		if err := checkMask("torus_configuration.masks.mask", m.GetMask()); err != nil {
			return err
		}
	}
	return firstError(atLeastOne("torus_configuration.number", c.GetNumber()))
}

func checkConfigurationStatus(s *lofamov1.ConfigurationStatus) error {
	if e := s.GetEpoch(); e == 0 || e > uint64(MaxEpoch) {
		return refuse(RefusedField, "configuration_status.epoch: given %d: want 1 to %d", e, uint64(MaxEpoch))
	}
	return firstError(checkID("configuration_status.node", s.GetNode()))
}
