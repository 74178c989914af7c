"""Tables, figures and studies made with the library: clients of its public API."""
