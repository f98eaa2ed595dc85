package servicenet

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// maxMask has the bits of all channels (chanmask.All).
const maxMask = 1<<6 - 1

func checkMaskOrder(m *lofamov1.MaskOrder) error {
	return firstError(
		checkID("mask_order.node", m.GetNode()),
		atLeastOne("mask_order.number", m.GetNumber()),
		checkMask("mask_order.mask", m.GetMask()),
		checkMaskEpoch(m),
	)
}

func checkMaskEpoch(m *lofamov1.MaskOrder) error {
	switch e := m.GetEpoch(); {
	case e > uint64(MaxEpoch):
		return refuse(RefusedField, "mask_order.epoch: given %d: want at most %d", e, uint64(MaxEpoch))
	case e != 0 && m.GetEpochUnknown():
		return refuse(RefusedField, "mask_order.epoch_unknown: given beside epoch %d: want one of them", e)
	}
	return nil
}

func checkMaskStatus(m *lofamov1.MaskStatus) error {
	if e := m.GetEpoch(); e == 0 || e > uint64(MaxEpoch) {
		return refuse(RefusedField, "mask_status.epoch: given %d: want 1 to %d", e, uint64(MaxEpoch))
	}
	if m.GetHalf() != lofamov1.Half_HALF_DNP {
		return refuse(RefusedField, "mask_status.half: given %d: want %d, who has the register", m.GetHalf(), lofamov1.Half_HALF_DNP)
	}
	return firstError(
		checkHalf("mask_status", m),
		checkMask("mask_status.ordered", m.GetOrdered()),
		checkMask("mask_status.own", m.GetOwn()),
		checkMask("mask_status.in_force", m.GetInForce()),
	)
}

func checkMask(field string, v uint32) error {
	if v > maxMask {
		return refuse(RefusedField, "%s: given 0x%x: want 0x00 to 0x%02x", field, v, maxMask)
	}
	return nil
}
