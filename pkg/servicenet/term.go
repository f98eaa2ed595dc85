package servicenet

import lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

// TermOf returns the term of the leader who has a message said, as its fencing tokens are: the revision of the store at which he was elected. 0: the message
// names none. Numbers of channel masks, peers and configurations, and what nodes are told of the map, are revisions of what they are of, and no terms: a leader
// goes on under a term that is lower than they are.
func TermOf(m *lofamov1.Message) uint64 {
	switch b := m.GetBody().(type) {
	case *lofamov1.Message_ActOrder:
		return b.ActOrder.GetToken()
	case *lofamov1.Message_DiagnosisOrder:
		return b.DiagnosisOrder.GetNumber().GetTerm()
	case *lofamov1.Message_ProcedureOrder:
		return b.ProcedureOrder.GetNumber().GetTerm()
	case *lofamov1.Message_MapOrder:
		return b.MapOrder.GetNumber().GetTerm()
	default:
	}
	return 0
}
