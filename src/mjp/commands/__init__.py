"""What each verb of the command line does. `options` is light; the verbs import what they need."""
