package servicenet

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Bounds of what travels.
const (
	MaxDatagram     = 1400 // bytes of a marshalled envelope
	MaxObservations = 64   // in one report
	MaxHops         = 16   // of one relayed message
	MaxNodeID       = 64   // bytes of [a-z0-9.-]
	MaxAckIDs       = 16   // report ids in one ack
	NonceSize       = 16   // bytes
)

// EncodeReport puts a report into its wire message.
func EncodeReport(r fault.Report) *lofamov1.Report { panic("skeleton") }

// DecodeReport is the strict inverse of EncodeReport.
func DecodeReport(m *lofamov1.Report) (fault.Report, error) { panic("skeleton") }

// SplitReport divides a report's observations so that each part fits a datagram, relayed or not.
// The parts have no IDs yet: Add each to the outbox in order.
func SplitReport(r fault.Report) []fault.Report { panic("skeleton") }

// EncodeReportID puts a report's id into its wire message.
func EncodeReportID(id fault.ReportID) *lofamov1.ReportID { panic("skeleton") }

// DecodeReportID is the strict inverse of EncodeReportID.
func DecodeReportID(m *lofamov1.ReportID) (fault.ReportID, error) { panic("skeleton") }

// EncodeHops puts hops into their wire messages.
func EncodeHops(hops []fault.Hop) []*lofamov1.Hop { panic("skeleton") }

// DecodeHops is the strict inverse of EncodeHops.
func DecodeHops(ms []*lofamov1.Hop) ([]fault.Hop, error) { panic("skeleton") }
