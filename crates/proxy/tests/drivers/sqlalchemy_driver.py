"""Transactions of an ORM that are open when the primary is killed: rows with keys that the server gave, and what refers to them."""

import sys

from sqlalchemy import Column, DateTime, ForeignKey, Integer, Sequence, String, create_engine, func, select, text
from sqlalchemy.dialects.postgresql import UUID
from sqlalchemy.orm import Session, declarative_base, relationship

EACH = 10
AT_LEAST = 0.95

Base = declarative_base()


class Order(Base):
    __tablename__ = "orders"
    id = Column(Integer, primary_key=True)
    customer = Column(String)
    lines = relationship("Line")


class Line(Base):
    __tablename__ = "lines"
    id = Column(Integer, primary_key=True)
    order_id = Column(ForeignKey("orders.id"))
    text = Column(String)


class Ticket(Base):
    """A sequence of its own, which the ORM asks beforehand."""
    __tablename__ = "tickets"
    id = Column(Integer, Sequence("ticket_numbers"), primary_key=True)
    text = Column(String)


class Document(Base):
    """Values of the server's that the ORM fetches at once."""
    __tablename__ = "documents"
    __mapper_args__ = {"eager_defaults": True}
    id = Column(UUID(as_uuid=True), primary_key=True, server_default=text("gen_random_uuid()"))
    made = Column(DateTime(timezone=True), server_default=func.clock_timestamp())
    text = Column(String)


def orders(session, n):
    order = Order(customer=f"c{n}", lines=[Line(text="first"), Line(text="it's second")])
    session.add(order)
    session.flush()
    return order


def tickets(session, n):
    session.add(Ticket(text=f"t{n}"))
    session.flush()
    return session.execute(select(Ticket).where(Ticket.text == f"t{n}")).scalar_one()


def documents(session, n):
    document = Document(text=f"d{n}")
    session.add(document)
    session.flush()
    assert document.made is not None
    return document


def several(session, n):
    session.add_all([Order(customer=f"s{n}") for _ in range(5)])
    session.flush()
    found = session.execute(select(Order).where(Order.customer == f"s{n}").order_by(Order.id)).scalars().all()
    found[0].customer = f"s{n} first"
    session.flush()
    return found[-1]


def main():
    engine = create_engine("postgresql+psycopg2://", pool_size=4 * EACH)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Order(customer="before"), Ticket(text="before"), Document(text="before")])
        session.commit()
    begun = []
    for kind in (orders, tickets, documents, several):
        for n in range(EACH):
            session = Session(engine)
            made = kind(session, n)
            begun.append((kind.__name__, session, type(made), made.id, made))
    print("ready", flush=True)
    sys.stdin.readline()
    survived = 0
    for kind, session, table, key, made in begun:
        try:
            if table is Order:
                session.add(Line(order_id=key, text="later"))
            else:
                made.text = made.text + " later"
            session.commit()
            survived += 1
        except Exception as error:
            session.rollback()
            print(f"{kind}: {error}", file=sys.stderr)
            continue
        # What the application knows is what is there.
        assert session.get(table, key, populate_existing=True) is not None, (kind, key)
        session.close()
    print(f"{survived} of {len(begun)} transactions went on", file=sys.stderr)
    assert survived >= AT_LEAST * len(begun)
    print("done", flush=True)


main()
