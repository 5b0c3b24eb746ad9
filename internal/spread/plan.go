package spread

import "encoding/json"

// A Plan says who is to own which shard.
type Plan struct {
	Owners map[string]string `json:"owners"` // by shard: the id of the member
}

// A PlanCodec is JSON, and takes what is no Plan, as a stranger may write it, for an
// empty one, which is made anew.
type PlanCodec struct{}

func (PlanCodec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

func (PlanCodec) Unmarshal(data []byte, v any) error {
	if json.Unmarshal(data, v) != nil {
		*v.(*Plan) = Plan{}
	}
	return nil
}
