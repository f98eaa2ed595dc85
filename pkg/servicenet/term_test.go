package servicenet

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// The term of a leader stands in what he orders, and nowhere else: a revision of something is none.
func TestTermOf(t *testing.T) {
	n := &lofamov1.OrderNumber{Term: 7, Count: 1}
	for i, tc := range []struct {
		m    *lofamov1.Message
		want uint64
	}{
		{&lofamov1.Message{Body: &lofamov1.Message_ActOrder{ActOrder: actOrder()}}, 7},
		{&lofamov1.Message{Body: &lofamov1.Message_DiagnosisOrder{DiagnosisOrder: &lofamov1.DiagnosisOrder{Number: n}}}, 7},
		{&lofamov1.Message{Body: &lofamov1.Message_ProcedureOrder{ProcedureOrder: &lofamov1.ProcedureOrder{Number: n}}}, 7},
		{&lofamov1.Message{Body: &lofamov1.Message_MapOrder{MapOrder: &lofamov1.MapOrder{Number: n}}}, 7},
		{&lofamov1.Message{Body: &lofamov1.Message_DiagnosisOrder{DiagnosisOrder: &lofamov1.DiagnosisOrder{}}}, 0},
		{&lofamov1.Message{Body: &lofamov1.Message_MaskOrder{MaskOrder: &lofamov1.MaskOrder{Number: 9}}}, 0},
		{&lofamov1.Message{Body: &lofamov1.Message_Told{Told: &lofamov1.Told{Revision: 9}}}, 0},
		{&lofamov1.Message{}, 0},
		{nil, 0},
	} {
		if got := TermOf(tc.m); got != tc.want {
			t.Errorf("%d: %d, want %d", i, got, tc.want)
		}
	}
}
